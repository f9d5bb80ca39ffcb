//! Quantities of the typed API. What they mean is in `semantics`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use knarr_semantics::quantity::saturating_value;
pub use knarr_semantics::quantity::{Format, Quantity, scale};

/// Whole units of a quantity, rounded up; zero when it is invalid, which the API server prevents. One that does not fit is
/// the largest number.
pub fn value(quantity: &ApiQuantity) -> i64 {
    saturating_value(&quantity.0, scale::ONE)
}

/// Thousandths of a quantity, likewise.
pub fn milli_value(quantity: &ApiQuantity) -> i64 {
    saturating_value(&quantity.0, scale::MILLI)
}

/// Parses a quantity of the API; zero when it is invalid.
pub fn of(quantity: &ApiQuantity) -> Quantity {
    Quantity::parse_amount(&quantity.0).unwrap_or_default()
}

/// The quantity as the API's type, in canonical form.
pub fn to_api(quantity: &Quantity) -> ApiQuantity {
    ApiQuantity(quantity.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_quantities_are_read_and_written() {
        for (text, units, milli, written) in [
            ("1.5", 2, 1500, "1500m"),
            ("1Gi", 1 << 30, 1000 << 30, "1Gi"),
            ("9E", 9_000_000_000_000_000_000, i64::MAX, "9E"),
            ("x", 0, 0, "0"),
        ] {
            let quantity = ApiQuantity(text.to_owned());
            assert_eq!((value(&quantity), milli_value(&quantity)), (units, milli), "{text}");
            assert_eq!(to_api(&of(&quantity)).0, written, "{text}");
        }
    }
}
