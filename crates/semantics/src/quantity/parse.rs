//! Parses quantities such as `1500m`, `2Gi` and `1e3`.

use num_bigint::BigInt;

use super::amount::Amount;
use super::{Format, QuantityError};

/// The limits of what is read, so that a short text cannot cause endless work.
const MOST_DIGITS: usize = 10_000;
const LARGEST_EXPONENT: i64 = 20_000;
/// How many digits before the point a quantity may have that somebody writes. The rest is left for sums of such quantities: what is
/// stored must be readable.
const MOST_WRITTEN: i64 = 10_001;

/// The number of digits that always fit in 64 bits.
const SAFE_DIGITS: usize = 18;
const NANO: i32 = -9;

pub(super) struct Parsed {
    pub amount: Amount,
    pub format: Format,
    /// Whether the text is kept verbatim.
    pub keeps_text: bool,
}

/// Like `parse`, for a quantity that somebody writes.
pub(super) fn parse_written(text: &str) -> Result<Parsed, QuantityError> {
    let parsed = parse(text)?;
    if parsed.format == Format::DecimalExponent {
        let parts = Parts::split(text)?;
        // The sum is the same in every form of the number: with fewer digits the exponent is larger.
        if let SuffixScale::Ten(exponent) = suffix(parts.suffix)?.0
            && i64::from(exponent) + parts.whole.len() as i64 > MOST_WRITTEN
        {
            return Err(QuantityError::Suffix);
        }
    }
    Ok(parsed)
}

pub(super) fn parse(text: &str) -> Result<Parsed, QuantityError> {
    if text == "0" {
        return Ok(small(0, 0, Format::DecimalSi, true));
    }
    let parts = Parts::split(text)?;
    let (suffix_scale, format) = suffix(parts.suffix)?;
    match parse_small(&parts, suffix_scale, format) {
        Some(parsed) => Ok(parsed),
        None => parse_large(&parts, suffix_scale, format),
    }
}

/// A split text; the integer digits have no leading zeros.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    /// Whether there was any digit.
    has_digits: bool,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Parts<'a>, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let negative = text.starts_with('-');
        let number = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (whole, rest) = take(number.trim_start_matches('0'), |byte| byte.is_ascii_digit());
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => take(rest, |byte| byte.is_ascii_digit()),
            None => ("", rest),
        };
        let letters = take(rest, |byte| b"eEinumkKMGTP".contains(&byte)).1;
        let digits = letters.strip_prefix(['-', '+']).unwrap_or(letters);
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        let has_digits = number.starts_with(|c: char| c.is_ascii_digit()) || !fraction.is_empty();
        Ok(Parts { negative, whole: if whole.is_empty() { "0" } else { whole }, fraction, suffix: rest, has_digits })
    }

    fn end_in_thousands(&self) -> bool {
        let mut digits = self.fraction.bytes().rev().chain(self.whole.bytes().rev());
        (0..3).all(|_| digits.next() == Some(b'0'))
    }

    fn signed(&self, magnitude: i64) -> i64 {
        if self.negative { -magnitude } else { magnitude }
    }
}

fn take(text: &str, belongs: impl Fn(u8) -> bool) -> (&str, &str) {
    text.split_at(text.bytes().position(|byte| !belongs(byte)).unwrap_or(text.len()))
}

/// The factor of a suffix.
#[derive(Clone, Copy)]
enum SuffixScale {
    Ten(i32),
    Two(u32),
}

fn suffix(suffix: &str) -> Result<(SuffixScale, Format), QuantityError> {
    let decimal = |exponent| Ok((SuffixScale::Ten(exponent), Format::DecimalSi));
    let binary = |exponent| Ok((SuffixScale::Two(exponent), Format::BinarySi));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
            let exponent: i64 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
            if exponent > LARGEST_EXPONENT {
                return Err(QuantityError::Suffix);
            }
            // Smaller values are rounded up to the smallest quantity.
            Ok((SuffixScale::Ten(exponent.max(-LARGEST_EXPONENT) as i32), Format::DecimalExponent))
        }
    }
}

/// The fast path without allocation; `None` if 64 bits may not be enough.
fn parse_small(parts: &Parts<'_>, suffix_scale: SuffixScale, format: Format) -> Option<Parsed> {
    match suffix_scale {
        SuffixScale::Ten(exponent) => {
            if parts.whole.len() + parts.fraction.len() > SAFE_DIGITS {
                return None;
            }
            let scale = exponent.checked_sub(parts.fraction.len() as i32).filter(|scale| *scale >= NANO)?;
            let value = append_digits(append_digits(0, parts.whole), parts.fraction);
            // Kubernetes decides by the digits only whether a text is canonical, so that some others are kept verbatim.
            let keeps_text = scale % 3 == 0 && !parts.end_in_thousands() && !parts.whole.starts_with('0');
            Some(small(parts.signed(value), scale, format, keeps_text))
        }
        SuffixScale::Two(exponent) => {
            // A binary exponent has about three tenths as many decimal digits.
            let room = 14 - parts.whole.len() as i64 - i64::from(exponent * 3 / 10);
            if !parts.fraction.is_empty() || room < 0 {
                return None;
            }
            let value = append_digits(0, parts.whole);
            let result = value.checked_mul(1 << exponent)?;
            Some(small(parts.signed(result), 0, format, value & 7 != 0))
        }
    }
}

fn append_digits(value: i64, digits: &str) -> i64 {
    digits.bytes().fold(value, |value, digit| value * 10 + i64::from(digit - b'0'))
}

fn small(value: i64, scale: i32, format: Format, keeps_text: bool) -> Parsed {
    Parsed { amount: Amount::Small { value, scale }, format, keeps_text }
}

fn parse_large(parts: &Parts<'_>, suffix_scale: SuffixScale, mut format: Format) -> Result<Parsed, QuantityError> {
    if !parts.has_digits || parts.whole.len() + parts.fraction.len() > MOST_DIGITS {
        return Err(QuantityError::Numeric);
    }
    let digits = [parts.whole, parts.fraction].concat();
    let mut value: BigInt = digits.parse().map_err(|_| QuantityError::Numeric)?;
    let mut scale = -(parts.fraction.len() as i32);
    match suffix_scale {
        SuffixScale::Ten(exponent) => scale += exponent,
        SuffixScale::Two(exponent) => value <<= exponent,
    }
    let mut amount = Amount::Large { value, scale };
    if amount.signum() != 0 {
        amount = amount.rounded(NANO).0;
    }
    if format == Format::BinarySi {
        let limit = |value| Amount::Small { value, scale: 0 };
        if amount.compare(&limit(i64::MAX)).is_gt() {
            amount = Amount::Large { value: i64::MAX.into(), scale: 0 };
        } else if amount.signum() > 0 && amount.compare(&limit(1)).is_lt() {
            format = Format::DecimalSi;
        }
    }
    if parts.negative {
        amount = amount.negated();
    }
    Ok(Parsed { amount, format, keeps_text: false })
}
