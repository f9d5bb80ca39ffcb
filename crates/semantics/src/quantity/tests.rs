use super::*;

#[test]
fn texts_become_canonical() {
    for (text, expected) in [
        ("0", "0"),
        ("0.0", "0"),
        ("0Ki", "0"),
        ("-0", "0"),
        ("+", "0"),
        (".", "0"),
        ("1", "1"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1500m", "1500m"),
        ("1.5", "1500m"),
        ("0.1", "100m"),
        ("1000m", "1"),
        ("100000m", "100"),
        ("1.500", "1.500"),
        ("+5", "+5"),
        ("005", "005"),
        ("-5", "-5"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("2048Mi", "2Gi"),
        ("1500Ki", "1500Ki"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1.1Ki", "1126400m"),
        ("0.0001Ki", "102400u"),
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("1e4", "10e3"),
        ("1000e0", "1e3"),
        ("12e-1", "1200e-3"),
        ("1e+6", "1e+6"),
        ("1G", "1G"),
        ("1E", "1E"),
        ("1000E", "1"),
        ("100n", "100n"),
        ("0.1n", "1n"),
        ("1e-12", "1e-9"),
        ("-0.1n", "-1n"),
        ("9Ei", "9223372036854775807"),
        ("8Ei", "9223372036854775807"),
        ("7Ei", "7Ei"),
        ("-9Ei", "-9223372036854775807"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1000000000000000000000000000000", "1"),
        ("1.0000000000000000000000001", "1000000001n"),
        ("1024000000000000000000", "1024E"),
        ("1e-10000000", "1e-9"),
        ("1e9999", "1e9999"),
    ] {
        assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
        assert_eq!(Quantity::parse(text).unwrap().to_string(), expected, "{text}");
    }
}

#[test]
fn what_may_be_written_and_sums_of_it_can_be_read() {
    for text in ["1e10000", "12e9999", "-1200e9997", "1.5e10000"] {
        let written = canonical(text).unwrap();
        let mut sum = Quantity::parse(&written).unwrap();
        for _ in 0..20 {
            sum.add(&sum.clone());
        }
        assert_eq!(Quantity::parse(&sum.to_string()), Ok(sum), "{text}");
    }
    for text in ["303000100e10000", "10e10000", "1e10001", "0.1e10001"] {
        assert_eq!(canonical(text).unwrap_err(), QuantityError::Suffix, "{text}");
    }
}

#[test]
fn malformed_texts_say_what_is_wrong() {
    for (text, error) in [
        ("", QuantityError::Format),
        (" 1", QuantityError::Format),
        ("1 ", QuantityError::Format),
        ("1.2.3", QuantityError::Format),
        ("1x", QuantityError::Format),
        ("abc", QuantityError::Format),
        ("--1", QuantityError::Suffix),
        ("1e", QuantityError::Suffix),
        ("1Kii", QuantityError::Suffix),
        ("1ki", QuantityError::Suffix),
        ("1ee5", QuantityError::Suffix),
        ("1Mi5", QuantityError::Suffix),
        ("1e99999999999999999999", QuantityError::Suffix),
        ("é", QuantityError::Format),
        ("1e20001", QuantityError::Suffix),
        ("Ei", QuantityError::Numeric),
    ] {
        assert_eq!(Quantity::parse(text).unwrap_err(), error, "{text}");
    }
    assert!(QuantityError::Format.to_string().ends_with("'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"));
}

#[test]
fn values_are_rounded_away_from_zero() {
    for (text, value, milli) in [
        ("1", 1, 1000),
        ("1m", 1, 1),
        ("1500m", 2, 1500),
        ("-1500m", -2, -1500),
        ("1n", 1, 1),
        ("1Gi", 1 << 30, 1000 << 30),
        ("7Ei", 7 << 60, (7i64 << 60).wrapping_mul(1000)),
        ("0.5Gi", 1 << 29, 1000 << 29),
        ("2k", 2000, 2_000_000),
    ] {
        let quantity = Quantity::parse(text).unwrap();
        assert_eq!(quantity.value(), value, "{text}");
        assert_eq!(quantity.milli_value(), milli, "{text}");
    }
    let mut quantity = Quantity::parse("1001m").unwrap();
    assert!(!quantity.round_up(scale::ONE));
    assert_eq!(quantity.to_string(), "2");
    assert!(quantity.round_up(scale::MILLI));
}

#[test]
fn decisions_do_not_wrap_around() {
    for (text, value, milli) in [
        ("", 0, 0),
        ("x", 0, 0),
        ("100m", 1, 100),
        ("-1500m", -2, -1500),
        ("1n", 1, 1),
        ("0.5n", 1, 1),
        ("1.5Gi", 3 << 29, 1000 * (3 << 29)),
        ("9E", 9_000_000_000_000_000_000, i64::MAX),
        ("7Ei", 7 << 60, i64::MAX),
        ("-7Ei", -(7 << 60), i64::MIN),
        ("9223372036854775807", i64::MAX, i64::MAX),
        ("9223372036854775808", i64::MAX, i64::MAX),
        ("-9223372036854775809", i64::MIN, i64::MIN),
        ("1e9999", i64::MAX, i64::MAX),
        ("-1e9999", i64::MIN, i64::MIN),
        ("0e9999", 0, 0),
        ("1.0000000000000000000000001", 2, 1001),
    ] {
        assert_eq!(saturating_value(text, scale::ONE), value, "{text}");
        assert_eq!(saturating_value(text, scale::MILLI), milli, "{text}");
        if let Ok(quantity) = Quantity::parse(text) {
            assert_eq!(quantity.saturating_value(scale::ONE), value, "{text}");
        }
    }
}

#[test]
fn arithmetic_keeps_the_format_of_the_first_that_is_not_zero() {
    for (a, b, sum, difference) in [
        ("1", "500m", "1500m", "500m"),
        ("0", "1Gi", "1Gi", "-1Gi"),
        ("1Gi", "1G", "2073741824", "73741824"),
        ("1Mi", "1Ki", "1025Ki", "1023Ki"),
        ("9223372036854775807", "1", "9223372036854775808", "9223372036854775806"),
        ("5e3", "1", "5001", "4999"),
        ("100m", "100m", "200m", "0"),
        ("1Ei", "1", "1152921504606846977", "1152921504606846975"),
    ] {
        let (a, b) = (Quantity::parse(a).unwrap(), Quantity::parse(b).unwrap());
        let mut result = a.clone();
        result.add(&b);
        assert_eq!(result.to_string(), sum, "{a} + {b}");
        let mut result = a.clone();
        result.subtract(&b);
        assert_eq!(result.to_string(), difference, "{a} - {b}");
    }
    let mut sum = Quantity::parse("9223372036854775807").unwrap();
    sum.add(&Quantity::parse("9223372036854775809").unwrap());
    assert_eq!(sum.to_string(), "18446744073709551616");
}

#[test]
fn order_is_that_of_the_value() {
    let ascending = ["-1e10000", "-1", "-1m", "0", "1n", "1m", "999m", "1", "1.0001", "1k", "1Ki", "1e20", "1e10000"];
    for (i, a) in ascending.iter().enumerate() {
        for (j, b) in ascending.iter().enumerate() {
            let ordering = Quantity::parse(a).unwrap().cmp(&Quantity::parse(b).unwrap());
            assert_eq!(ordering, i.cmp(&j), "{a} {b}");
        }
    }
    assert_eq!(Quantity::parse("1000m"), Quantity::parse("1"));
    assert_eq!(Quantity::parse("1024Mi"), Quantity::parse("1Gi"));
}

/// A body holds a hundred thousand of them.
#[test]
fn huge_exponents_cost_no_more_than_their_text() {
    let start = std::time::Instant::now();
    for digits in 0..50_000 {
        let text = format!("1{digits:018}e9960");
        let written = canonical(&text).unwrap();
        assert!(written.len() <= text.len() + 2, "{written}");
    }
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    let value = |text: &str| Quantity::parse(text).unwrap();
    assert_eq!(value("1234567890123456789e3").value(), 1_234_567_890_123_456_789i64.wrapping_mul(1000));
    assert!(value("1000000000000000000001e9960") > value("1000000000000000000000e9960"));
    assert!(value("1000000000000000000000e9960") == value("1000000000000000000e9963"));
}
