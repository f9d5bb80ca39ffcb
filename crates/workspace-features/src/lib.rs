//! Nothing: this crate unifies the features of dependencies, see its `Cargo.toml`.
