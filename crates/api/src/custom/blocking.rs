//! Errors after which rules are not looked at, as they could not rely on the object.

use crate::field::{Error, Errors, Fault};

/// Says that rules were not checked where errors keep them from it.
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
