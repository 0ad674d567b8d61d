//! What is promised of it, on random histories.
