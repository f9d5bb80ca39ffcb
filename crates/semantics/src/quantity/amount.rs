//! The exact number behind a quantity, and arithmetic with it.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

/// A number: `value` times ten to the power of `scale`.
#[derive(Debug, Clone)]
pub(super) enum Amount {
    Small { value: i64, scale: i32 },
    Large { value: BigInt, scale: i32 },
}

use Amount::{Large, Small};

impl Amount {
    /// -1, 0 or 1.
    pub fn signum(&self) -> i32 {
        match self {
            Small { value, .. } => value.signum() as i32,
            Large { value, .. } => match value.sign() {
                Sign::Minus => -1,
                Sign::NoSign => 0,
                Sign::Plus => 1,
            },
        }
    }

    /// The value, if it is a whole number that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Small { value, scale } if *scale >= 0 => scale_up(*value, *scale as u32),
            _ => None,
        }
    }

    /// The nearest floating-point number.
    pub fn as_f64(&self) -> f64 {
        let (value, scale) = match self {
            Small { value, scale } => (*value as f64, *scale),
            Large { value, scale } => (value.to_string().parse().unwrap_or(f64::NAN), *scale),
        };
        if scale == 0 { value } else { value * 10f64.powi(scale) }
    }

    /// The value in units of ten to the power of `unit`, rounded as Kubernetes rounds it.
    pub fn scaled_value(&self, unit: i32) -> i64 {
        match self {
            Small { value, scale } if *scale < unit => round_away(*value, scale.abs_diff(unit)).0,
            Small { value, scale } => match scale.abs_diff(unit) {
                // An overflow of these wraps; any other is zero.
                power @ (0..=3 | 6 | 9) => value.wrapping_mul(10i64.pow(power)),
                power => scale_up(*value, power).unwrap_or(0),
            },
            Large { value, scale } => scaled_large(value, *scale, unit),
        }
    }

    /// The same, but a value that does not fit is the largest or smallest number.
    pub fn saturating_value(&self, unit: i32) -> i64 {
        let limit = if self.signum() < 0 { i64::MIN } else { i64::MAX };
        match self {
            Small { scale, .. } if *scale < unit => self.scaled_value(unit),
            Small { value, scale } => scale_up(*value, scale.abs_diff(unit)).unwrap_or(limit),
            Large { value, .. } if value.sign() == Sign::NoSign => 0,
            Large { .. } => match self.rounded(unit).0 {
                Large { value, scale } => i64::try_from(value * power_of_ten(scale.abs_diff(unit))).unwrap_or(limit),
                Small { .. } => limit,
            },
        }
    }

    /// Whether the number is stored in units of at least ten to the power of `unit`.
    pub fn is_multiple(&self, unit: i32) -> bool {
        matches!(self, Small { scale, .. } if *scale >= unit)
    }

    /// The number rounded away from zero to the unit, and whether that changed nothing.
    pub fn rounded(&self, unit: i32) -> (Amount, bool) {
        match self {
            Small { scale, .. } if *scale >= unit => (self.clone(), true),
            Small { value, scale } => {
                let (value, exact) = round_away(*value, scale.abs_diff(unit));
                (Small { value, scale: unit }, exact)
            }
            // Not written out: a text of a few bytes may stand for thousands of digits.
            Large { scale, .. } if *scale >= unit => (self.clone(), true),
            Large { value, scale } => {
                let divisor = power_of_ten(scale.abs_diff(unit));
                let (mut quotient, remainder) = (value / &divisor, value % &divisor);
                let exact = remainder.sign() == Sign::NoSign;
                if !exact {
                    quotient += self.signum();
                }
                (Large { value: quotient, scale: unit }, exact)
            }
        }
    }

    /// The exact sum.
    pub fn plus(&self, other: &Amount) -> Amount {
        match (self, other) {
            (Small { value: a, scale: a_scale }, Small { value: b, scale: b_scale }) => {
                if *b == 0 {
                    return self.clone();
                }
                if *a == 0 {
                    return other.clone();
                }
                small_sum(*a, *a_scale, *b, *b_scale).unwrap_or_else(|| large_sum(self, other))
            }
            _ => large_sum(self, other),
        }
    }

    /// The value with the opposite sign.
    pub fn negated(&self) -> Amount {
        match self {
            Small { value, scale } => match value.checked_neg() {
                Some(value) => Small { value, scale: *scale },
                None => Large { value: -BigInt::from(*value), scale: *scale },
            },
            Large { value, scale } => Large { value: -value.clone(), scale: *scale },
        }
    }

    /// Compares the values, whatever their scales are.
    pub fn compare(&self, other: &Amount) -> Ordering {
        let (sign, other_sign) = (self.signum(), other.signum());
        if sign != other_sign || sign == 0 {
            return sign.cmp(&other_sign);
        }
        if let (Small { value: a, scale: a_scale }, Small { value: b, scale: b_scale }) = (self, other)
            && a_scale == b_scale
        {
            return a.cmp(b);
        }
        // Numbers of different length are compared without arithmetic, which would be slow for huge exponents.
        let by_length = self.length().cmp(&other.length());
        if by_length != Ordering::Equal {
            return if sign > 0 { by_length } else { by_length.reverse() };
        }
        let ((a, a_scale), (b, b_scale)) = (self.large(), other.large());
        let common = a_scale.min(b_scale);
        (a * power_of_ten(a_scale.abs_diff(common))).cmp(&(b * power_of_ten(b_scale.abs_diff(common))))
    }

    /// Digits and an exponent that is a multiple of three, without needless zeros.
    pub fn base_1000(&self) -> (String, i32) {
        let mut digits = match self {
            Small { value, .. } => value.to_string(),
            Large { value, .. } => value.to_string(),
        };
        let mut exponent = match self {
            Small { scale, .. } | Large { scale, .. } => *scale,
        };
        let length = digits.trim_end_matches('0').len();
        exponent += (digits.len() - length) as i32;
        digits.truncate(length);
        for _ in 0..exponent.rem_euclid(3) {
            digits.push('0');
            exponent -= 1;
        }
        (digits, exponent)
    }

    /// The digits of an integer and the power of 1024 that was divided out.
    pub fn base_1024(&self) -> (String, u32) {
        let mut power = 0;
        if let Some(mut value) = self.as_i64() {
            while value != 0 && value % 1024 == 0 {
                value /= 1024;
                power += 1;
            }
            return (value.to_string(), power);
        }
        let (mut value, scale) = self.large();
        if scale > 0 {
            value *= power_of_ten(scale as u32);
        }
        while value.sign() != Sign::NoSign && (&value % 1024u32).sign() == Sign::NoSign {
            value /= 1024u32;
            power += 1;
        }
        (value.to_string(), power)
    }

    fn large(&self) -> (BigInt, i32) {
        match self {
            Small { value, scale } => (BigInt::from(*value), *scale),
            Large { value, scale } => (value.clone(), *scale),
        }
    }

    /// The number of digits before the decimal point; negative for small fractions.
    fn length(&self) -> i64 {
        match self {
            Small { value, scale } => i64::from(value.unsigned_abs().ilog10()) + i64::from(*scale),
            Large { value, scale } => value.magnitude().to_string().len() as i64 - 1 + i64::from(*scale),
        }
    }
}

fn power_of_ten(exponent: u32) -> BigInt {
    BigInt::from(10).pow(exponent)
}

fn scale_up(value: i64, power: u32) -> Option<i64> {
    if value == 0 { Some(0) } else { value.checked_mul(10i64.checked_pow(power)?) }
}

/// Divides by a power of ten; a remainder moves the result away from zero.
fn round_away(value: i64, power: u32) -> (i64, bool) {
    let Some(divisor) = 10i64.checked_pow(power) else {
        return (value.signum(), value == 0);
    };
    if value % divisor == 0 { (value / divisor, true) } else { (value / divisor + value.signum(), false) }
}

fn small_sum(a: i64, a_scale: i32, b: i64, b_scale: i32) -> Option<Amount> {
    let scale = a_scale.min(b_scale);
    let a = scale_up(a, a_scale.abs_diff(scale))?;
    let b = scale_up(b, b_scale.abs_diff(scale))?;
    Some(Small { value: a.checked_add(b)?, scale })
}

fn large_sum(a: &Amount, b: &Amount) -> Amount {
    let ((a, a_scale), (b, b_scale)) = (a.large(), b.large());
    let scale = a_scale.min(b_scale);
    let value = a * power_of_ten(a_scale.abs_diff(scale)) + b * power_of_ten(b_scale.abs_diff(scale));
    Large { value, scale }
}

/// Overflow keeps the low bits, as in Kubernetes.
fn scaled_large(value: &BigInt, scale: i32, unit: i32) -> i64 {
    if scale >= unit {
        return low_bits(value).wrapping_mul(10i64.wrapping_pow(scale.abs_diff(unit)));
    }
    let divisor = power_of_ten(scale.abs_diff(unit));
    let (quotient, remainder) = (value / &divisor, value % &divisor);
    match remainder.sign() {
        Sign::NoSign => low_bits(&quotient),
        Sign::Plus => low_bits(&quotient).wrapping_add(1),
        Sign::Minus => low_bits(&quotient).wrapping_sub(1),
    }
}

fn low_bits(value: &BigInt) -> i64 {
    let magnitude = value.iter_u64_digits().next().unwrap_or(0) as i64;
    if value.sign() == Sign::Minus { magnitude.wrapping_neg() } else { magnitude }
}
