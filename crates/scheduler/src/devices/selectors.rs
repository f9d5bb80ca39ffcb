//! Compiled device selectors, and devices as selectors see them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::resource::v1 as api;
use knarr_api::cel::{DeviceSelector, Value, semver};

/// More expressions than this are not kept compiled.
const MAX_KEPT: usize = 256;

type Compiled = Arc<Result<DeviceSelector, String>>;

/// Expressions that were compiled before: most claims use those of a few classes.
#[derive(Default)]
pub struct Selectors(Mutex<HashMap<String, Compiled>>);

impl Selectors {
    pub(super) fn get(&self, expression: &str) -> Compiled {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.get(expression) {
            return Arc::clone(known);
        }
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        let compiled: Compiled = Arc::new(DeviceSelector::compile(expression).map_err(|error| error.to_string()));
        kept.insert(expression.to_owned(), Arc::clone(&compiled));
        compiled
    }
}

/// A device as the variable of a selector. Attributes and capacities without a domain have the driver's.
pub(super) fn device_value<'a>(driver: &'a str, device: &'a api::Device) -> Result<Value<'a>, String> {
    let mut attributes = ByDomain::default();
    for (name, attribute) in device.attributes.iter().flatten() {
        let value = attribute_value(attribute).map_err(|error| format!("attribute {name}: {error}"))?;
        attributes.insert(driver, name, value);
    }
    let mut capacity = ByDomain::default();
    for (name, amount) in device.capacity.iter().flatten() {
        let parsed = amount.value.0.parse().map_err(|_| format!("capacity {name}: not a quantity"))?;
        capacity.insert(driver, name, Value::Quantity(Arc::new(parsed)));
    }
    let shared = device.allow_multiple_allocations == Some(true);
    let fields = [
        ("driver", Value::text(driver)),
        ("allowMultipleAllocations", Value::Bool(shared)),
        ("attributes", attributes.into_value()),
        ("capacity", capacity.into_value()),
    ];
    Ok(Value::Map(Arc::new(fields.into_iter().map(|(name, value)| (Value::text(name), value)).collect())))
}

fn attribute_value(attribute: &api::DeviceAttribute) -> Result<Value<'_>, String> {
    match attribute {
        api::DeviceAttribute { int: Some(number), .. } => Ok(Value::Int(*number)),
        api::DeviceAttribute { bool: Some(flag), .. } => Ok(Value::Bool(*flag)),
        api::DeviceAttribute { string: Some(text), .. } => Ok(Value::text(text.as_str())),
        api::DeviceAttribute { version: Some(text), .. } => {
            semver(text).ok_or_else(|| format!("parse semantic version: invalid version {text:?}"))
        }
        _ => Err("unsupported attribute value".to_owned()),
    }
}

#[derive(Default)]
struct ByDomain<'a>(BTreeMap<&'a str, Vec<(Value<'a>, Value<'a>)>>);

impl<'a> ByDomain<'a> {
    fn insert(&mut self, driver: &'a str, name: &'a str, value: Value<'a>) {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        self.0.entry(domain).or_default().push((Value::text(id), value));
    }

    fn into_value(self) -> Value<'a> {
        let entry = |(domain, entries)| (Value::text(domain), Value::Map(Arc::new(entries)));
        Value::MapOfMaps(Arc::new(self.0.into_iter().map(entry).collect()))
    }
}
