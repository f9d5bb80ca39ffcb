//! Exact arithmetic on resource quantities ("100m", "1Gi", "2e3").
//!
//! A value is stored in billionths, the smallest unit of the API; finer digits are rounded away from zero, as the API does.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

const NANO: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
/// No quantity is larger than 2^63-1 whole units.
const LIMIT: i128 = i64::MAX as i128 * NANO;

/// The suffixes that a quantity is written with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `m`, `k`, `M`, `G`.
    #[default]
    DecimalSi,
    /// `Ki`, `Mi`, `Gi`.
    BinarySi,
    /// `e3`, `e6`.
    DecimalExponent,
}

/// An exact resource quantity.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

/// A text that is not a quantity.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("\"{0}\" is not a quantity")]
pub struct NotAQuantity(pub String);

/// Whole units of a quantity, rounded up; zero when it is invalid, which the API server prevents.
pub fn value(quantity: &ApiQuantity) -> i64 {
    Quantity::parse(&quantity.0).map_or(0, |q| q.value())
}

/// Thousandths of a quantity, rounded up; zero when it is invalid.
pub fn milli_value(quantity: &ApiQuantity) -> i64 {
    Quantity::parse(&quantity.0).map_or(0, |q| q.milli_value())
}

impl Quantity {
    /// No units.
    pub const ZERO: Quantity = Quantity { nano: 0, format: Format::DecimalSi };

    /// A number of whole units.
    pub fn new(value: i64, format: Format) -> Self {
        Self { nano: i128::from(value) * NANO, format }
    }

    /// A number of thousandths.
    pub fn from_milli(milli: i64, format: Format) -> Self {
        Self { nano: i128::from(milli) * MILLI, format }
    }

    /// Parses the text form.
    pub fn parse(text: &str) -> Result<Self, NotAQuantity> {
        parse(text).ok_or_else(|| NotAQuantity(text.to_owned()))
    }

    /// Parses a quantity of the API; zero when it is invalid.
    pub fn of(quantity: &ApiQuantity) -> Self {
        Self::parse(&quantity.0).unwrap_or(Self::ZERO)
    }

    /// Whole units, rounded up.
    pub fn value(self) -> i64 {
        round_up(self.nano, NANO)
    }

    /// Thousandths, rounded up.
    pub fn milli_value(self) -> i64 {
        round_up(self.nano, MILLI)
    }

    /// Whether the quantity is zero.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// Whether the quantity is negative.
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// The suffixes it is written with.
    pub fn format(self) -> Format {
        self.format
    }

    /// The approximate value in units.
    pub fn as_f64(self) -> f64 {
        self.nano as f64 / NANO as f64
    }

    /// The larger of two quantities.
    pub fn max(self, other: Self) -> Self {
        if other > self { other } else { self }
    }

    /// The quantity as the API's type, in canonical form.
    pub fn to_api(self) -> ApiQuantity {
        ApiQuantity(self.to_string())
    }

    fn combined(self, other: Self, nano: i128) -> Self {
        // A zero adopts the other's format, so that sums started from zero look like their summands.
        let format = if self.nano == 0 { other.format } else { self.format };
        Self { nano: nano.clamp(-LIMIT, LIMIT), format }
    }
}

impl std::ops::Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        self.combined(other, self.nano.saturating_add(other.nano))
    }
}

impl std::ops::Sub for Quantity {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.combined(other, self.nano.saturating_sub(other.nano))
    }
}

impl std::ops::AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
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
        self.nano.cmp(&other.nano)
    }
}

impl FromStr for Quantity {
    type Err = NotAQuantity;
    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        Self::parse(text)
    }
}

/// The canonical form: no fraction, the largest suffix that leaves a whole number.
impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return out.write_str("0");
        }
        match self.format {
            Format::BinarySi if self.nano.abs() >= 1024 * NANO => {
                let mut number = i128::from(self.value());
                let mut suffix = 0;
                while number % 1024 == 0 && suffix < BINARY.len() {
                    number /= 1024;
                    suffix += 1;
                }
                write!(out, "{number}{}", if suffix == 0 { "" } else { BINARY[suffix - 1] })
            }
            format => {
                let mut number = self.nano;
                let mut exponent = -9;
                while number % 1000 == 0 && exponent < 18 {
                    number /= 1000;
                    exponent += 3;
                }
                match format {
                    Format::DecimalExponent if exponent != 0 => write!(out, "{number}e{exponent}"),
                    Format::DecimalExponent => write!(out, "{number}"),
                    _ => write!(out, "{number}{}", decimal_suffix(exponent)),
                }
            }
        }
    }
}

const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

fn decimal_suffix(exponent: i32) -> &'static str {
    match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        0 => "",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        _ => "E",
    }
}

fn round_up(nano: i128, unit: i128) -> i64 {
    let whole = nano / unit;
    let whole = if nano % unit == 0 { whole } else { whole + nano.signum() };
    whole.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (numerator, denominator, format) = scale(suffix)?;
    let mut nano: i128 = 0;
    let mut is_inexact = false;
    // Digits are added by their weight; digits finer than a billionth only decide whether to round up.
    for digit in whole.bytes() {
        nano = nano.saturating_mul(10).saturating_add(i128::from(digit - b'0') * NANO).min(LIMIT);
    }
    nano = nano.saturating_mul(numerator);
    let mut remainder = nano % denominator;
    nano /= denominator;
    is_inexact |= remainder != 0;
    let mut weight = NANO.saturating_mul(numerator);
    for digit in fraction.bytes() {
        let digit = i128::from(digit - b'0');
        is_inexact |= digit != 0 && weight % 10 != 0;
        weight /= 10;
        let term = digit * weight;
        remainder = term % denominator;
        is_inexact |= remainder != 0;
        nano = nano.saturating_add(term / denominator);
    }
    let nano = (nano + i128::from(is_inexact)).min(LIMIT);
    Some(Quantity { nano: if negative { -nano } else { nano }, format })
}

/// The suffix as numerator over denominator.
fn scale(suffix: &str) -> Option<(i128, i128, Format)> {
    let decimal = |exponent: u32| Some((10i128.pow(exponent), 1, Format::DecimalSi));
    match suffix {
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "m" => Some((1, 1000, Format::DecimalSi)),
        "u" => Some((1, 1_000_000, Format::DecimalSi)),
        "n" => Some((1, NANO, Format::DecimalSi)),
        _ => {
            if let Some(power) = BINARY.iter().position(|known| *known == suffix) {
                return Some((1i128 << (10 * (power + 1)), 1, Format::BinarySi));
            }
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let scale = 10i128.checked_pow(exponent.unsigned_abs())?;
            let (numerator, denominator) = if exponent < 0 { (1, scale) } else { (scale, 1) };
            Some((numerator, denominator, Format::DecimalExponent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_formats() {
        for (text, value, milli, canonical) in [
            ("0", 0, 0, "0"),
            ("100m", 1, 100, "100m"),
            ("0.1", 1, 100, "100m"),
            ("1.5", 2, 1500, "1500m"),
            ("1Gi", 1 << 30, (1i64 << 30) * 1000, "1Gi"),
            ("1.5Gi", 3 << 29, (3i64 << 29) * 1000, "1536Mi"),
            ("1000", 1000, 1_000_000, "1k"),
            ("2e3", 2000, 2_000_000, "2e3"),
            ("-1", -1, -1000, "-1"),
            ("1n", 1, 1, "1n"),
            ("0.5n", 1, 1, "1n"),
            ("128974848", 128_974_848, 128_974_848_000, "128974848"),
            ("123456Ki", 126_418_944, 126_418_944_000, "123456Ki"),
            ("512.5Ki", 524_800, 524_800_000, "524800"),
            ("9E", 9_000_000_000_000_000_000, i64::MAX, "9E"),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!((quantity.value(), quantity.milli_value()), (value, milli), "{text}");
            assert_eq!(quantity.to_string(), canonical, "{text}");
        }
        for text in ["", "x", "1.1.1", "1KiB", "--1", "1e", "."] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sums_keep_the_format_of_their_summands() {
        let sum = Quantity::ZERO + Quantity::parse("1Gi").unwrap() + Quantity::parse("1Gi").unwrap();
        assert_eq!(sum.to_string(), "2Gi");
        let rest = Quantity::parse("1").unwrap() - Quantity::parse("250m").unwrap();
        assert_eq!(rest.to_string(), "750m");
        assert!(Quantity::parse("1").unwrap() > Quantity::parse("999m").unwrap());
    }
}
