//! Kubernetes quantities: fixed-point numbers with a decimal or binary suffix, such as `250m` or `1.5Gi`.
//!
//! Nearly all fit a 64-bit mantissa with a power of ten and do not allocate; the others use numbers of any
//! size. The text equals that of Kubernetes, oddities included, because clients compare it.

mod amount;
mod parse;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use amount::Amount;

/// Powers of ten for [`Quantity::scaled_value`] and [`Quantity::round_up`].
pub mod scale {
    /// 10⁻⁹.
    pub const NANO: i32 = -9;
    /// 10⁻⁶.
    pub const MICRO: i32 = -6;
    /// 10⁻³.
    pub const MILLI: i32 = -3;
    /// 1.
    pub const ONE: i32 = 0;
}

/// Why a text is not a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The format of a quantity's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    DecimalSi,
}

/// A quantity. Equality and order are those of its value, not of its text.
#[derive(Debug, Clone)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    /// The text it was parsed from, if it is canonical.
    text: Option<Box<str>>,
}

/// The canonical form of a quantity; borrows the text if it is canonical.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, QuantityError> {
    let parsed = parse::parse(text)?;
    if parsed.keeps_text {
        return Ok(Cow::Borrowed(text));
    }
    Ok(Cow::Owned(Quantity { amount: parsed.amount, format: parsed.format, text: None }.to_string()))
}

impl Quantity {
    /// Parses a text such as `100m` or `1Gi`.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        let parsed = parse::parse(text)?;
        Ok(Quantity { amount: parsed.amount, format: parsed.format, text: parsed.keeps_text.then(|| Box::from(text)) })
    }

    /// A whole amount.
    pub fn new(value: i64, format: Format) -> Quantity {
        Quantity::scaled(value, scale::ONE, format)
    }

    /// An amount in thousandths.
    pub fn from_milli(value: i64, format: Format) -> Quantity {
        Quantity::scaled(value, scale::MILLI, format)
    }

    /// `value` times ten to the power of `scale`.
    pub fn scaled(value: i64, scale: i32, format: Format) -> Quantity {
        Quantity { amount: Amount::Small { value, scale }, format, text: None }
    }

    /// The format in which the quantity is written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.signum() == 0
    }

    /// Whether the amount is below zero.
    pub fn is_negative(&self) -> bool {
        self.signum() < 0
    }

    /// -1, 0 or 1.
    pub fn signum(&self) -> i32 {
        self.amount.signum()
    }

    /// The value rounded away from zero; overflow wraps or becomes zero.
    pub fn value(&self) -> i64 {
        self.scaled_value(scale::ONE)
    }

    /// The same in thousandths.
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(scale::MILLI)
    }

    /// The same in units of ten to the power of `scale`.
    pub fn scaled_value(&self, scale: i32) -> i64 {
        self.amount.scaled_value(scale)
    }

    /// The value, if it is an integer of 64 bits.
    pub fn as_i64(&self) -> Option<i64> {
        self.amount.as_i64()
    }

    /// The nearest floating-point number.
    pub fn as_f64(&self) -> f64 {
        self.amount.as_f64()
    }

    /// Rounds away from zero to a multiple of ten to the power of `scale`; returns whether the value is unchanged.
    pub fn round_up(&mut self, scale: i32) -> bool {
        if self.amount.is_multiple(scale) {
            return true;
        }
        self.text = None;
        let (rounded, exact) = self.amount.rounded(scale);
        self.amount = rounded;
        exact
    }

    /// Adds a quantity. If this one was zero, the sum has the format of the other.
    pub fn add(&mut self, other: &Quantity) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(&other.amount);
    }

    /// See [`Quantity::add`].
    pub fn subtract(&mut self, other: &Quantity) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(&other.amount.negated());
    }

    /// Multiplies the amount.
    pub fn multiply(&mut self, factor: i64) {
        self.text = None;
        self.amount = self.amount.times(factor);
    }

    /// Changes the sign of the amount.
    pub fn negate(&mut self) {
        self.text = None;
        self.amount = self.amount.negated();
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Quantity::new(0, Format::DecimalSi)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Quantity::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.compare(&other.amount)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            return out.write_str(text);
        }
        if self.is_zero() {
            return out.write_str("0");
        }
        if self.format == Format::BinarySi {
            let small = |limit| Amount::Small { value: limit, scale: 0 };
            let below_a_kilo = self.amount.compare(&small(-1024)) == Ordering::Greater
                && self.amount.compare(&small(1024)) == Ordering::Less;
            // Values that a binary suffix would round are written in decimal.
            if !below_a_kilo && let (whole, true) = self.amount.rounded(0) {
                let (digits, power) = whole.base_1024();
                return write!(out, "{digits}{}", binary_suffix(power));
            }
        }
        let (digits, exponent) = self.amount.base_1000();
        match self.format {
            Format::DecimalExponent if exponent != 0 => write!(out, "{digits}e{exponent}"),
            Format::DecimalExponent => out.write_str(&digits),
            Format::DecimalSi | Format::BinarySi => write!(out, "{digits}{}", decimal_suffix(exponent)),
        }
    }
}

/// Kubernetes drops the suffix of values beyond its largest one.
fn decimal_suffix(exponent: i32) -> &'static str {
    match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        18 => "E",
        _ => "",
    }
}

fn binary_suffix(power: u32) -> &'static str {
    ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(power as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
            ("1e10001", QuantityError::Suffix),
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
        let mut product = Quantity::parse("4611686018427387904").unwrap();
        product.multiply(4);
        assert_eq!(product.to_string(), "18446744073709551616");
    }

    #[test]
    fn order_is_that_of_the_value() {
        let ascending =
            ["-1e10000", "-1", "-1m", "0", "1n", "1m", "999m", "1", "1.0001", "1k", "1Ki", "1e20", "1e10000"];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                let ordering = Quantity::parse(a).unwrap().cmp(&Quantity::parse(b).unwrap());
                assert_eq!(ordering, i.cmp(&j), "{a} {b}");
            }
        }
        assert_eq!(Quantity::parse("1000m"), Quantity::parse("1"));
        assert_eq!(Quantity::parse("1024Mi"), Quantity::parse("1Gi"));
    }
}
