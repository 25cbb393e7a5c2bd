//! Weir: http.
