//! Which tolerations tolerate which taints, of nodes and of devices.

/// A taint of a node or a device.
#[derive(Clone, Copy, Debug)]
pub struct Taint<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its value; empty if it has none.
    pub value: &'a str,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: &'a str,
}

/// A toleration of a pod or of a request for devices. Fields that it does not have are empty.
#[derive(Clone, Copy, Debug)]
pub struct Toleration<'a> {
    /// Empty for all keys.
    pub key: &'a str,
    /// `Equal`, which is meant by none at all, `Exists`, `Lt` or `Gt`.
    pub operator: &'a str,
    /// What the taint's value is compared with.
    pub value: &'a str,
    /// Empty for all effects.
    pub effect: &'a str,
}

impl Toleration<'_> {
    /// Whether this toleration tolerates a taint.
    pub fn tolerates(&self, taint: Taint<'_>) -> bool {
        if !self.effect.is_empty() && self.effect != taint.effect || !self.key.is_empty() && self.key != taint.key {
            return false;
        }
        let numbers = || Some((decimal(taint.value)?, decimal(self.value)?));
        match self.operator {
            "" | "Equal" => self.value == taint.value,
            "Exists" => true,
            "Lt" => numbers().is_some_and(|(tainted, tolerated)| tainted < tolerated),
            "Gt" => numbers().is_some_and(|(tainted, tolerated)| tainted > tolerated),
            _ => false,
        }
    }
}

/// Whether a text is an integer of any size without a plus sign or leading zeros, which some languages read as octal.
pub fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_plain = digits.starts_with(|first: char| matches!(first, '1'..='9')) || text == "0";
    is_plain && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn decimal(text: &str) -> Option<i64> {
    text.parse().ok().filter(|_| is_decimal(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_tolerate_taints() {
        let (plain, number) = (("k", "v", "NoExecute"), ("k", "5", "NoSchedule"));
        for (toleration, taint, expected) in [
            (("k", "", "v", ""), plain, true),
            (("k", "Equal", "v", "NoExecute"), plain, true),
            (("k", "Equal", "w", ""), plain, false),
            (("j", "Equal", "v", ""), plain, false),
            (("k", "Equal", "v", "NoSchedule"), plain, false),
            (("k", "Exists", "", ""), plain, true),
            (("", "Exists", "", ""), plain, true),
            (("", "Exists", "", "NoSchedule"), plain, false),
            // Without a key, only the value is compared. The API refuses such a toleration.
            (("", "Equal", "v", ""), plain, true),
            (("", "", "", ""), plain, false),
            (("k", "Near", "v", ""), plain, false),
            (("k", "Lt", "6", ""), number, true),
            (("k", "Lt", "5", ""), number, false),
            (("k", "Gt", "4", ""), number, true),
            (("k", "Gt", "-4", ""), number, true),
            (("k", "Gt", "5", ""), number, false),
            (("k", "Gt", "04", ""), number, false),
            (("k", "Gt", "+4", ""), number, false),
            (("k", "Gt", "0", ""), number, true),
            (("k", "Gt", "-0", ""), number, false),
            (("k", "Lt", "v", ""), number, false),
            (("k", "Lt", "6", ""), ("k", "v", "NoSchedule"), false),
            (("k", "Lt", "99999999999999999999", ""), number, false),
        ] {
            let (key, operator, value, effect) = toleration;
            let tolerates = Toleration { key, operator, value, effect }.tolerates(Taint {
                key: taint.0,
                value: taint.1,
                effect: taint.2,
            });
            assert_eq!(tolerates, expected, "{toleration:?} {taint:?}");
        }
    }
}
