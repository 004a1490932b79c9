//! Nothing: the filters are the examples.
