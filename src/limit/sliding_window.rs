//! Weighted counters of sub-windows.
