//! What evaluating costs, so that no rule can keep the server busy.

use super::error::EvaluateError;
use super::value::Value;

/// What asking the authorizer costs.
const CHECK: u64 = 350_000;

/// Counts what was spent, up to a limit.
#[derive(Debug)]
pub(super) struct Meter {
    pub spent: u64,
    limit: u64,
}

impl Meter {
    pub fn new(limit: u64) -> Self {
        Meter { spent: 0, limit }
    }

    pub fn spend(&mut self, cost: u64) -> Result<(), EvaluateError> {
        self.spent = self.spent.saturating_add(cost);
        if self.spent > self.limit { Err(EvaluateError::TooExpensive) } else { Ok(()) }
    }

    /// Functions that go through a text or list cost by its size.
    pub fn spend_call(&mut self, function: &str, values: &[Value<'_>]) -> Result<(), EvaluateError> {
        let size = |at: usize| values.get(at).and_then(Value::size).unwrap_or(1) as u64;
        let tenth = |size: u64| size.div_ceil(10);
        let cost = match function {
            "matches" | "find" | "findAll" => (1 + tenth(size(0))) * (1 + size(1).div_ceil(4)),
            "contains" => tenth(size(0)) * tenth(size(1)).max(1),
            "startsWith" | "endsWith" | "lowerAscii" | "upperAscii" | "trim" | "replace" | "split" | "substring"
            | "join" | "bytes" | "format" | "quantity" | "url" | "isURL" | "isQuantity" | "ip" | "isIP" | "cidr"
            | "isCIDR" | "charAt" | "reverse" => tenth(size(0)).max(1),
            "check" => CHECK,
            "@in" => size(1),
            "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" | "distinct" | "sort" | "flatten"
            | "slice" => size(0),
            "sets.contains" | "sets.equivalent" | "sets.intersects" => size(0).saturating_mul(size(1)),
            "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" | "_+_" => tenth(size(0).min(size(1))).max(1),
            _ => 1,
        };
        self.spend(cost)
    }
}
