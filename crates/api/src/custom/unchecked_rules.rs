//! Errors after which validation rules are not evaluated, because rules rely on a valid object.

use crate::field::{Error, ErrorType, Errors};

/// Adds an error if other errors prevent the evaluation of rules, and returns whether they do.
pub(super) fn note_unchecked_rules(errors: &mut Errors) -> bool {
    let blocking = |error: &Error| {
        matches!(
            error.error_type,
            ErrorType::NotSupported
                | ErrorType::Required
                | ErrorType::TooLong
                | ErrorType::TooMany
                | ErrorType::TypeInvalid
        )
    };
    let blocked = errors.0.iter().any(blocking);
    if blocked {
        errors.push(Error {
            field: "<nil>".to_owned(),
            error_type: ErrorType::Invalid,
            bad_value: Some("null".to_owned()),
            detail:
                "some validation rules were not checked because the object was invalid; correct the existing errors \
                     to complete validation"
                    .to_owned(),
        });
    }
    blocked
}
