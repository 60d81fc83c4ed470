"""Whether everything that is tiered is whole and where it should be."""
