//! What holds for the metadata of every kind, built-in or custom.
