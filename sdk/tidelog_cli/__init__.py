"""The command ``tidelog``: a thin shell over the SDK and the stores."""
