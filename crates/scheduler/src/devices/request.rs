//! The requests of a claim, with what they refer to.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1 as api;
use knarr_client::{node_fit, quantity};

use super::constraint::Constraint;
use super::slice::Amounts;

/// The maximum number of devices of a claim.
pub const MAX_DEVICES: usize = 32;

pub struct Claim<'a> {
    pub object: &'a api::ResourceClaim,
    /// Alternatives of each request, the first that can be satisfied counts; a request without a choice has one.
    pub requests: Vec<Vec<Request<'a>>>,
    pub constraints: Vec<Constraint<'a>>,
}

pub struct Request<'a> {
    pub name: &'a str,
    pub subrequest: Option<&'a str>,
    pub class: &'a api::DeviceClass,
    pub selectors: &'a [api::DeviceSelector],
    pub tolerations: &'a [api::DeviceToleration],
    pub is_admin: bool,
    pub capacity: Amounts,
    pub count: Count,
}

#[derive(Debug, PartialEq)]
pub enum Count {
    Exactly(usize),
    /// All that match; they are known before the search.
    All(Vec<usize>),
}

impl Count {
    pub fn number(&self) -> usize {
        match self {
            Count::Exactly(number) => *number,
            Count::All(devices) => devices.len(),
        }
    }
}

impl Request<'_> {
    /// The name in results: request, or request and subrequest.
    pub fn full_name(&self) -> String {
        match self.subrequest {
            Some(subrequest) => format!("{}/{subrequest}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// The innermost name, as messages have it.
    pub fn own_name(&self) -> &str {
        self.subrequest.unwrap_or(self.name)
    }

    pub fn tolerates(&self, device: &api::Device) -> bool {
        let keeps_out = |taint: &&api::DeviceTaint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        let mut taints = device.taints.iter().flatten().filter(keeps_out);
        taints.all(|taint| self.tolerations.iter().any(|toleration| node_fit::tolerates_device(toleration, taint)))
    }
}

/// The namespace and name of a claim.
pub fn key(claim: &api::ResourceClaim) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&claim.metadata.namespace), text(&claim.metadata.name))
}

pub type Classes = HashMap<String, Arc<api::DeviceClass>>;

impl<'a> Claim<'a> {
    /// Reads a claim. Requests for all devices have none yet.
    pub fn read(claim: &'a api::ResourceClaim, classes: &'a Classes) -> Result<Self, String> {
        let devices = claim.spec.devices.as_ref();
        let mut requests = Vec::new();
        for request in devices.and_then(|devices| devices.requests.as_deref()).unwrap_or_default() {
            let mut alternatives = Vec::new();
            if let Some(exact) = &request.exactly {
                alternatives.push(read_exactly(claim, request, exact, classes)?);
            }
            for subrequest in request.first_available.iter().flatten() {
                alternatives.push(read_subrequest(claim, request, subrequest, classes)?);
            }
            if alternatives.is_empty() {
                return Err(format!("resource claim {}, request {}: unknown request type", key(claim), request.name));
            }
            requests.push(alternatives);
        }
        let mut constraints = Vec::new();
        let all = devices.and_then(|devices| devices.constraints.as_deref()).unwrap_or_default();
        for (index, constraint) in all.iter().enumerate() {
            constraints.push(Constraint::of(constraint).ok_or_else(|| {
                let key = key(claim);
                format!("claim {key}, constraint #{index}: empty constraint (unsupported constraint type?)")
            })?);
        }
        Ok(Claim { object: claim, requests, constraints })
    }
}

fn read_exactly<'a>(
    claim: &'a api::ResourceClaim,
    request: &'a api::DeviceRequest,
    exact: &'a api::ExactDeviceRequest,
    classes: &'a Classes,
) -> Result<Request<'a>, String> {
    let reader = Reader { claim, name: &request.name, class: &exact.device_class_name, classes };
    Ok(Request {
        name: &request.name,
        subrequest: None,
        selectors: reader.selectors(&exact.selectors)?,
        class: reader.class()?,
        count: reader.count(exact.allocation_mode.as_deref(), exact.count)?,
        tolerations: exact.tolerations.as_deref().unwrap_or_default(),
        is_admin: exact.admin_access == Some(true),
        capacity: amounts(&exact.capacity),
    })
}

fn read_subrequest<'a>(
    claim: &'a api::ResourceClaim,
    request: &'a api::DeviceRequest,
    subrequest: &'a api::DeviceSubRequest,
    classes: &'a Classes,
) -> Result<Request<'a>, String> {
    let reader = Reader { claim, name: &subrequest.name, class: &subrequest.device_class_name, classes };
    Ok(Request {
        name: &request.name,
        subrequest: Some(&subrequest.name),
        selectors: reader.selectors(&subrequest.selectors)?,
        class: reader.class()?,
        count: reader.count(subrequest.allocation_mode.as_deref(), subrequest.count)?,
        tolerations: subrequest.tolerations.as_deref().unwrap_or_default(),
        is_admin: false,
        capacity: amounts(&subrequest.capacity),
    })
}

fn amounts(capacity: &Option<api::CapacityRequirements>) -> Amounts {
    let requests = capacity.iter().flat_map(|capacity| capacity.requests.iter().flatten());
    requests.map(|(name, amount)| (name.clone(), quantity::of(amount))).collect()
}

/// Reads the parts that requests and subrequests have in common.
struct Reader<'a> {
    claim: &'a api::ResourceClaim,
    name: &'a str,
    class: &'a str,
    classes: &'a Classes,
}

impl<'a> Reader<'a> {
    fn wrong(&self, what: impl std::fmt::Display) -> String {
        format!("claim {}, request {}{what}", key(self.claim), self.name)
    }

    fn selectors(&self, selectors: &'a Option<Vec<api::DeviceSelector>>) -> Result<&'a [api::DeviceSelector], String> {
        let selectors = selectors.as_deref().unwrap_or_default();
        match selectors.iter().position(|selector| selector.cel.is_none()) {
            Some(at) => Err(self.wrong(format!(", selector #{at}: CEL expression empty (unsupported selector type?)"))),
            None => Ok(selectors),
        }
    }

    fn class(&self) -> Result<&'a api::DeviceClass, String> {
        if self.class.is_empty() {
            return Err(self.wrong(": missing device class name (unsupported request type?)"));
        }
        self.classes.get(self.class).map(|class| &**class).ok_or_else(|| {
            let class = self.class;
            let missing = format!("deviceclass.resource.k8s.io \"{class}\" not found");
            self.wrong(format!(": could not retrieve device class {class}: {missing}"))
        })
    }

    fn count(&self, mode: Option<&str>, count: Option<i64>) -> Result<Count, String> {
        match mode.unwrap_or("ExactCount") {
            "ExactCount" => {
                let count = count.unwrap_or(1);
                let count =
                    usize::try_from(count).map_err(|_| self.wrong(format!(": exact count {count} is too large")));
                Ok(Count::Exactly(count?))
            }
            "All" => Ok(Count::All(Vec::new())),
            other => Err(self.wrong(format!(": unsupported count mode {other}"))),
        }
    }
}
