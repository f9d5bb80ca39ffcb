//! The results of a search, as they are written into the claims.

use std::collections::HashMap;
use std::ops::Range;

use k8s_openapi::api::resource::v1 as api;
use knarr_client::{node, quantity};

use super::allocator::AllocationError;
use super::node_selector::usable_on;
use super::request::{Claim, Request};
use super::search::{Given, Search};

pub fn results(
    search: &Search<'_>,
    share_id: &mut dyn FnMut() -> String,
) -> Result<Vec<api::AllocationResult>, AllocationError> {
    let mut results = Vec::with_capacity(search.claims.len());
    for (claim, given) in search.claims.iter().zip(&search.given) {
        let devices: Vec<_> = given.iter().map(|given| device_result(search, claim, given, share_id)).collect();
        let config = configuration(claim, &chosen(claim, given));
        let candidates = given.iter().map(|given| &search.candidates[given.candidate]);
        results.push(api::AllocationResult {
            allocation_timestamp: None,
            devices: Some(api::DeviceAllocationResult {
                config: (!config.is_empty()).then_some(config),
                results: Some(devices),
            }),
            node_selector: usable_on(candidates, node::name(search.node))?,
        });
    }
    Ok(results)
}

fn device_result(
    search: &Search<'_>,
    claim: &Claim<'_>,
    given: &Given,
    share_id: &mut dyn FnMut() -> String,
) -> api::DeviceRequestAllocationResult {
    let candidate = &search.candidates[given.candidate];
    let request = &claim.requests[given.request][given.alternative];
    let (device, id) = (candidate.api(), &candidate.device().id);
    let consumed = given.consumed.as_ref().filter(|amounts| !amounts.is_empty());
    let filled = |list: &Option<Vec<String>>| list.clone().filter(|list| !list.is_empty());
    api::DeviceRequestAllocationResult {
        request: request.full_name(),
        driver: id.pool.driver.to_string(),
        pool: id.pool.pool.to_string(),
        device: id.device.to_string(),
        admin_access: request.is_admin.then_some(true),
        tolerations: (!request.tolerations.is_empty()).then(|| request.tolerations.to_vec()),
        share_id: given.consumed.is_some().then(share_id),
        consumed_capacity: consumed
            .map(|amounts| amounts.iter().map(|(name, amount)| (name.clone(), quantity::to_api(amount))).collect()),
        binding_conditions: filled(&device.binding_conditions),
        binding_failure_conditions: filled(&device.binding_failure_conditions),
    }
}

/// The alternative of each request that got devices.
fn chosen<'a, 'b>(claim: &'b Claim<'a>, given: &[Given]) -> Vec<&'b Request<'a>> {
    let alternative = |request: usize| {
        let own = given.iter().find(|given| given.request == request);
        own.map_or(0, |given| given.alternative)
    };
    claim.requests.iter().enumerate().map(|(index, request)| &request[alternative(index)]).collect()
}

/// The configurations of the classes, each once, and those of the claim that apply.
fn configuration(claim: &Claim<'_>, chosen: &[&Request<'_>]) -> Vec<api::DeviceAllocationConfiguration> {
    let mut all: Vec<api::DeviceAllocationConfiguration> = Vec::new();
    let mut of_class: HashMap<&str, Range<usize>> = HashMap::new();
    for request in chosen {
        let class = request.class.metadata.name.as_deref().unwrap_or_default();
        if let Some(known) = of_class.get(class) {
            for config in &mut all[known.clone()] {
                config.requests.get_or_insert_default().push(request.full_name());
            }
            continue;
        }
        let start = all.len();
        for config in request.class.spec.config.iter().flatten() {
            all.push(api::DeviceAllocationConfiguration {
                source: "FromClass".to_owned(),
                requests: Some(vec![request.full_name()]),
                opaque: config.opaque.clone(),
            });
        }
        of_class.insert(class, start..all.len());
    }
    let devices = claim.object.spec.devices.as_ref();
    for config in devices.iter().flat_map(|devices| devices.config.iter().flatten()) {
        let named = config.requests.as_deref().unwrap_or_default();
        let applies =
            |request: &&&Request<'_>| named.iter().any(|name| name == request.name || *name == request.full_name());
        let times = if named.is_empty() { 1 } else { chosen.iter().filter(applies).count() };
        for _ in 0..times {
            all.push(api::DeviceAllocationConfiguration {
                source: "FromClaim".to_owned(),
                requests: config.requests.clone(),
                opaque: config.opaque.clone(),
            });
        }
    }
    all
}
