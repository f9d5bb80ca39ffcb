//! Encryption at rest: encrypts the values of selected resources in the store with the keys of an EncryptionConfiguration.
//! The format of encrypted values is that of Kubernetes, so that each can read the other's data.

mod cipher;
mod configuration;
mod kms;
mod reload;
#[doc(hidden)]
pub mod fuzzing {
    pub use super::kms::fuzz as kms_value;
}
#[cfg(test)]
mod request_tests;
mod store;

pub use crate::stored::check_readable;
pub use cipher::Algorithm;
pub use configuration::{Configuration, ConfigurationError};
pub use reload::watch_configuration;
pub use store::{Encrypted, Encryption, open_keys};
