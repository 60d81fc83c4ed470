"""Record batches to Arrow and back, without a Python object for a record (extra ``arrow``)."""
