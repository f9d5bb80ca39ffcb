//! Constraints of a claim on its devices together. Once one is violated, more devices do not help.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1 as api;

pub struct Constraint<'a> {
    /// Requests, or requests and subrequests, that it applies to; all if it is empty.
    requests: &'a [String],
    attribute: &'a str,
    is_distinct: bool,
    /// The values of the devices, in the order in which they were added.
    values: Vec<Attribute<'a>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Attribute<'a> {
    Text(&'a str),
    Number(i64),
    Flag(bool),
    Version(&'a str),
    /// Of a type that cannot be compared.
    Unknown,
}

impl<'a> Constraint<'a> {
    /// None if the constraint is of an unknown type.
    pub fn of(constraint: &'a api::DeviceConstraint) -> Option<Self> {
        let (attribute, is_distinct) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(name), _) => (name.as_str(), false),
            (None, Some(name)) => (name.as_str(), true),
            (None, None) => return None,
        };
        let requests = constraint.requests.as_deref().unwrap_or_default();
        Some(Constraint { requests, attribute, is_distinct, values: Vec::new() })
    }

    /// Adds a device, unless that violates the constraint.
    pub fn add(&mut self, request: &str, subrequest: Option<&str>, driver: &str, device: &'a api::Device) -> bool {
        if !self.applies(request, subrequest) {
            return true;
        }
        let Some(value) = lookup(device.attributes.as_ref(), driver, self.attribute) else { return false };
        let is_like = |other: &Attribute<'_>| value != Attribute::Unknown && value == *other;
        let fits = match (self.is_distinct, self.values.as_slice()) {
            (_, []) => true,
            (false, [first, ..]) => is_like(first),
            (true, others) => value != Attribute::Unknown && !others.iter().any(is_like),
        };
        if fits {
            self.values.push(value);
        }
        fits
    }

    /// Removes the device that was added last.
    pub fn remove(&mut self, request: &str, subrequest: Option<&str>) {
        if self.applies(request, subrequest) {
            self.values.pop();
        }
    }

    fn applies(&self, request: &str, subrequest: Option<&str>) -> bool {
        let is_named = |name: &String| {
            let sub = name.strip_prefix(request).and_then(|rest| rest.strip_prefix('/'));
            name == request || sub.is_some() && sub == subrequest
        };
        self.requests.is_empty() || self.requests.iter().any(is_named)
    }
}

fn lookup<'a>(
    attributes: Option<&'a BTreeMap<String, api::DeviceAttribute>>,
    driver: &str,
    name: &str,
) -> Option<Attribute<'a>> {
    let attributes = attributes?;
    // Drivers leave out their own domain.
    let own = || name.strip_prefix(driver).and_then(|rest| rest.strip_prefix('/'));
    let found = attributes.get(name).or_else(|| attributes.get(own()?))?;
    Some(match found {
        api::DeviceAttribute { string: Some(text), .. } => Attribute::Text(text),
        api::DeviceAttribute { int: Some(number), .. } => Attribute::Number(*number),
        api::DeviceAttribute { bool: Some(flag), .. } => Attribute::Flag(*flag),
        api::DeviceAttribute { version: Some(text), .. } => Attribute::Version(text),
        _ => Attribute::Unknown,
    })
}
