//! Encryption at rest: values of chosen resources are encrypted on their way into the store and decrypted on their way
//! out of it, by the keys of an EncryptionConfiguration. The form of encrypted values is that of Kubernetes, so that
//! each can read what the other has written.

mod cipher;
mod configuration;
mod store;

pub use configuration::{Configuration, ConfigurationError};
pub use store::Encrypted;
