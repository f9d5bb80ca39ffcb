//! Quantities: the canonical form has the same value, and arithmetic does not fail.
#![no_main]

use knarr_api::quantity::{Quantity, canonical};

libfuzzer_sys::fuzz_target!(|input: &str| {
    let Ok(quantity) = Quantity::parse(input) else { return };
    let text = canonical(input).expect("what can be read has a canonical form").into_owned();
    let again = Quantity::parse(&text).expect("a canonical form can be read");
    assert_eq!(canonical(&text).as_deref(), Ok(text.as_str()));
    let _ = (quantity.value(), quantity.milli_value(), quantity.as_i64(), quantity.as_f64());
    let mut sum = quantity.clone();
    sum.add(&again);
    sum.subtract(&again);
    sum.negate();
    sum.multiply(7);
    sum.round_up(0);
});
