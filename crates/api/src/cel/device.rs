//! The variable of device selectors, and how they are compiled and evaluated.

use std::sync::Arc;

use super::error::{CompileError, EvaluateError};
use super::program::Program;
use super::types::{ObjectType, Type};
use super::value::Value;

/// The maximum cost of evaluating a selector for one device.
const COST_LIMIT: u64 = 1_000_000;

/// A compiled device selector.
#[derive(Debug)]
pub struct DeviceSelector(Program);

/// Why an expression is not a device selector.
#[derive(Debug, thiserror::Error)]
pub enum SelectorError {
    #[error("compilation failed: {0}")]
    Compile(#[from] CompileError),
    #[error("must evaluate to bool or the unknown type, not {0}")]
    Kind(Type),
}

impl DeviceSelector {
    /// Compiles an expression over the variable `device`, which must evaluate to a boolean.
    pub fn compile(expression: &str) -> Result<Self, SelectorError> {
        let program = Program::compile(expression, &[("device".to_owned(), device_type())])?;
        match program.kind() {
            Type::Bool | Type::Dyn => Ok(DeviceSelector(program)),
            other => Err(SelectorError::Kind(other.clone())),
        }
    }

    /// Whether the device is selected.
    pub fn matches(&self, device: Value<'_>) -> Result<bool, EvaluateError> {
        match self.0.evaluate(vec![("device", device)], COST_LIMIT).0? {
            Value::Bool(selected) => Ok(selected),
            other => {
                let kind = other.type_name();
                Err(EvaluateError::new(format!("CEL result of type {kind} could not be converted to bool")))
            }
        }
    }
}

fn device_type() -> Type {
    let by_domain = |value: Type| Type::map(Type::String, Type::map(Type::String, value));
    let fields = [
        ("driver", Type::String),
        ("attributes", by_domain(Type::Dyn)),
        ("capacity", by_domain(Type::Opaque("kubernetes.Quantity"))),
        ("allowMultipleAllocations", Type::Bool),
    ];
    let fields = fields.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
    Type::Object(Arc::new(ObjectType { name: "kubernetes.DRADevice".to_owned(), fields }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Value<'static> {
        let map = |entries: Vec<(&'static str, Value<'static>)>| {
            entries.into_iter().map(|(name, value)| (Value::text(name), value)).collect::<Vec<_>>()
        };
        let version = super::super::semver("1.2.3").expect("a version");
        let attributes = vec![("model", Value::text("a100")), ("driverVersion", version), ("ecc", Value::Bool(true))];
        let memory = Value::Quantity(Arc::new("40Gi".parse().expect("a quantity")));
        let domain = |inner| Value::MapOfMaps(Arc::new(map(vec![("gpu.example.com", Value::Map(Arc::new(inner)))])));
        Value::Map(Arc::new(map(vec![
            ("driver", Value::text("gpu.example.com")),
            ("allowMultipleAllocations", Value::Bool(false)),
            ("attributes", domain(map(attributes))),
            ("capacity", domain(map(vec![("memory", memory)]))),
        ])))
    }

    #[test]
    fn selectors_read_attributes_and_capacity() {
        for (expression, expected) in [
            ("device.driver == 'gpu.example.com'", Ok(true)),
            ("device.attributes['gpu.example.com'].model == 'a100'", Ok(true)),
            ("device.attributes['gpu.example.com'].ecc", Ok(true)),
            ("device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('1.2.0'))", Ok(true)),
            ("device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0", Ok(true)),
            ("cel.bind(own, device.attributes['gpu.example.com'], own.ecc && own.model == 'b')", Ok(false)),
            ("'other.example.com' in device.attributes", Ok(false)),
            ("'model' in device.attributes['other.example.com']", Ok(false)),
            ("has(device.attributes['other.example.com'].model)", Ok(false)),
            ("device.attributes['gpu.example.com'].missing == 1", Err("no such key: missing")),
            ("device.attributes['other.example.com'].missing == 1", Err("no such key: missing")),
            (
                "device.attributes['gpu.example.com'].model",
                Err("CEL result of type string could not be converted to bool"),
            ),
            (
                "lists.range(100000).all(a, lists.range(100000).all(b, true))",
                Err("operation cancelled: actual cost limit exceeded"),
            ),
        ] {
            let selector = DeviceSelector::compile(expression).expect(expression);
            let found = selector.matches(device()).map_err(|error| error.to_string());
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|error| *error),
                "{expression}"
            );
        }
    }

    #[test]
    fn other_expressions_are_refused() {
        for (expression, expected) in [
            ("device.drivers == ''", "compilation failed: ERROR: <input>:1:7: undefined field 'drivers'"),
            ("device.driver", "must evaluate to bool or the unknown type, not string"),
            ("nope", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'nope' (in container '')"),
        ] {
            let error = DeviceSelector::compile(expression).expect_err(expression).to_string();
            assert_eq!(error.lines().next(), Some(expected), "{expression}");
        }
    }
}
