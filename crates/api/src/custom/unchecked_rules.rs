//! Errors after which validation rules are not evaluated, because rules rely on a valid object.

use crate::field::{Error, Errors, Fault};

/// Adds an error if other errors prevent the evaluation of rules, and returns whether they do.
pub(super) fn note_unchecked_rules(errors: &mut Errors) -> bool {
    let blocking = |error: &Error| {
        matches!(
            error.fault,
            Fault::NotSupported | Fault::Required | Fault::TooLong | Fault::TooMany | Fault::TypeInvalid
        )
    };
    let blocked = errors.0.iter().any(blocking);
    if blocked {
        errors.push(Error {
            field: "<nil>".to_owned(),
            fault: Fault::Invalid,
            shown: Some("null".to_owned()),
            detail:
                "some validation rules were not checked because the object was invalid; correct the existing errors \
                     to complete validation"
                    .to_owned(),
        });
    }
    blocked
}
