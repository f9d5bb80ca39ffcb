//! Cargo resolves the dependencies of build scripts only for crates that have one.

fn main() {}
