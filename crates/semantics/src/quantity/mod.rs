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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    #[default]
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

/// The canonical form of a quantity that somebody writes; borrows the text if it is canonical.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, QuantityError> {
    let parsed = parse::parse_written(text)?;
    if parsed.keeps_text {
        return Ok(Cow::Borrowed(text));
    }
    Ok(Cow::Owned(Quantity { amount: parsed.amount, format: parsed.format, text: None }.to_string()))
}

/// The value of a text in units of ten to the power of `scale`, rounded away from zero. What does not fit is the largest or
/// smallest number: for decisions, where an amount must not wrap around to nothing. Zero for text that is no quantity, which
/// the API server refuses.
pub fn saturating_value(text: &str, scale: i32) -> i64 {
    parse::parse(text).map_or(0, |parsed| parsed.amount.saturating_value(scale))
}

impl Quantity {
    /// No units.
    pub const ZERO: Quantity = Quantity::scaled(0, scale::ONE, Format::DecimalSi);

    /// Parses a text such as `100m` or `1Gi`.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        let parsed = parse::parse(text)?;
        Ok(Quantity { amount: parsed.amount, format: parsed.format, text: parsed.keeps_text.then(|| Box::from(text)) })
    }

    /// The same without the text as it is written, so that copies of nearly all quantities allocate nothing.
    pub fn parse_amount(text: &str) -> Result<Quantity, QuantityError> {
        let parsed = parse::parse(text)?;
        Ok(Quantity { amount: parsed.amount, format: parsed.format, text: None })
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
    pub const fn scaled(value: i64, scale: i32, format: Format) -> Quantity {
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

    /// The same, but what does not fit is the largest or smallest number: see [`saturating_value`].
    pub fn saturating_value(&self, scale: i32) -> i64 {
        self.amount.saturating_value(scale)
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
}

impl Default for Quantity {
    fn default() -> Self {
        Quantity::ZERO
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
mod tests;
