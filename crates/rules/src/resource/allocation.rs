//! Validation of the status of a claim: allocated devices and consumers.

use std::collections::BTreeSet;

use knarr_api::cidr::parse_network_sloppy;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::claim_spec::RequestNames;
use super::{configuration, device, naming};
use crate::common::go_json::struct_json;
use crate::common::{checks, conditions};
use crate::core::pod::validation::scheduling;

const MAX_CONSUMERS: usize = 256;
const MAX_RESULTS: usize = 32;
const MAX_CONFIGURATIONS: usize = 64;
const MAX_CONDITIONS: usize = 8;
const MAX_DATA_LENGTH: usize = 10 * 1024;
const MAX_INTERFACE_LENGTH: usize = 256;
const MAX_HARDWARE_LENGTH: usize = 128;
const MAX_ADDRESSES: usize = 16;

/// The identity of a device in status and allocation: driver, pool, device, share.
type Device<'a> = (&'a str, &'a str, &'a str, Option<&'a str>);

fn device_of(value: &Value) -> Device<'_> {
    (value.text(&["driver"]), value.text(&["pool"]), value.text(&["device"]), value["shareID"].as_str())
}

fn allocated(status: &Value) -> BTreeSet<Device<'_>> {
    status.items(&["allocation", "devices", "results"]).iter().map(device_of).collect()
}

/// Removes the status of devices that are no longer allocated.
pub fn drop_deallocated(claim: &mut Value, old: &Value) {
    let now: BTreeSet<Device<'_>> = allocated(&claim["status"]);
    let gone: Vec<Device<'_>> = allocated(&old["status"]).into_iter().filter(|device| !now.contains(device)).collect();
    let devices = claim.items(&["status", "devices"]);
    let kept: Vec<Value> = devices.iter().filter(|device| !gone.contains(&device_of(device))).cloned().collect();
    if kept.len() == devices.len() {
        return;
    }
    if kept.is_empty() {
        claim.remove(&["status", "devices"]);
    } else {
        claim.set(&["status", "devices"], kept);
    }
}

/// Validates a status update.
pub fn validate(errors: &mut Errors, claim: &Value, old: &Value) {
    let path = Path::root("status");
    let (status, old) = (&claim["status"], &old["status"]);
    validate_consumers(errors, &path.child("reservedFor"), status);
    validate_devices(errors, &path.child("devices"), status);
    let consumers = status.items(&["reservedFor"]);
    if !consumers.is_empty() {
        let at = path.child("reservedFor");
        if !status.has(&["allocation"]) {
            errors.forbidden(&at, "may not be specified when `allocated` is not set");
        } else if claim.has(&["metadata", "deletionTimestamp"])
            && consumers.iter().any(|consumer| !old.items(&["reservedFor"]).contains(consumer))
        {
            let detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.forbidden(&at, detail);
        }
    }
    let at = path.child("allocation");
    match (status.has(&["allocation"]), old.has(&["allocation"])) {
        (true, true) => {
            checks::immutable_structure(errors, &at, "AllocationResult", &status["allocation"], &old["allocation"])
        }
        (true, false) => validate_allocation(errors, &at, &status["allocation"], &RequestNames::of(&claim["spec"])),
        _ => {}
    }
}

fn validate_consumers(errors: &mut Errors, path: &Path<'_>, status: &Value) {
    let consumers = status.items(&["reservedFor"]);
    if !naming::within(errors, path, consumers.len(), MAX_CONSUMERS) {
        return;
    }
    for (index, consumer) in consumers.iter().enumerate() {
        let path = path.index(index);
        for field in ["resource", "name", "uid"] {
            if consumer.text(&[field]).is_empty() {
                errors.required(&path.child(field), "");
            }
        }
    }
    let ids: Vec<Value> = consumers.iter().map(|consumer| consumer["uid"].clone()).collect();
    naming::validate_distinct(errors, path, &ids);
}

fn validate_devices(errors: &mut Errors, path: &Path<'_>, status: &Value) {
    let devices = status.items(&["devices"]);
    let known = allocated(status);
    for (index, device) in devices.iter().enumerate() {
        validate_device(errors, &path.index(index), device, &known);
    }
    let mut seen = BTreeSet::new();
    for (index, device) in devices.iter().enumerate() {
        if !seen.insert(device_of(device)) {
            let key = device_json(device_of(device));
            errors.duplicate(&path.index(index), key);
        }
    }
}

/// Renders a device for error messages.
fn device_json((driver, pool, device, share): Device<'_>) -> Value {
    let mut rendered = json!({"Driver": driver, "Pool": pool, "Device": device});
    rendered.set(&["ShareID"], share.unwrap_or_default());
    rendered
}

fn validate_device(errors: &mut Errors, path: &Path<'_>, device: &Value, known: &BTreeSet<Device<'_>>) {
    let key = device_of(device);
    let (driver, pool, name, share) = key;
    naming::validate_driver(errors, &path.child("driver"), driver);
    naming::validate_pool(errors, &path.child("pool"), pool);
    names::check(errors, &path.child("device"), name, names::dns_label);
    if let Some(share) = share {
        naming::validate_share(errors, &path.child("shareID"), share);
    }
    if !known.contains(&key) {
        let rendered = struct_json(&[
            ("Driver", driver.into()),
            ("Pool", pool.into()),
            ("Device", name.into()),
            ("ShareID", share.unwrap_or_default().into()),
        ]);
        errors.invalid_verbatim(path, rendered, "must be an allocated device in the claim");
    }
    let list = device.items(&["conditions"]);
    naming::within(errors, &path.child("conditions"), list.len(), MAX_CONDITIONS);
    conditions::validate(errors, &path.child("conditions"), list);
    if device.has(&["data"]) {
        configuration::validate_raw(errors, &path.child("data"), &device["data"], false, MAX_DATA_LENGTH);
    }
    validate_network(errors, &path.child("networkData"), &device["networkData"]);
}

fn validate_network(errors: &mut Errors, path: &Path<'_>, data: &Value) {
    for (field, max_length) in [("interfaceName", MAX_INTERFACE_LENGTH), ("hardwareAddress", MAX_HARDWARE_LENGTH)] {
        if data.text(&[field]).len() > max_length {
            errors.too_long(&path.child(field), max_length);
        }
    }
    let addresses = data.items(&["ips"]);
    let at = path.child("ips");
    if naming::within(errors, &at, addresses.len(), MAX_ADDRESSES) {
        for (index, address) in addresses.iter().enumerate() {
            validate_interface_address(errors, &at.index(index), address.as_str().unwrap_or_default());
        }
        naming::validate_distinct(errors, &at, addresses);
    }
}

fn validate_interface_address(errors: &mut Errors, path: &Path<'_>, text: &str) {
    match parse_network_sloppy(text) {
        None => {
            let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
            errors.invalid(path, text, detail);
        }
        Some((written, range)) => {
            let canonical = format!("{written}/{}", range.length());
            if text != canonical {
                errors.invalid(path, text, format!("must be in canonical form ({canonical:?})"));
            }
        }
    }
}

fn validate_allocation(errors: &mut Errors, path: &Path<'_>, allocation: &Value, known: &RequestNames<'_>) {
    let devices = path.child("devices");
    let results = allocation.items(&["devices", "results"]);
    let at = devices.child("results");
    if naming::within(errors, &at, results.len(), MAX_RESULTS) {
        for (index, result) in results.iter().enumerate() {
            let path = at.index(index);
            known.validate(errors, &path.child("request"), result.text(&["request"]));
            naming::validate_driver(errors, &path.child("driver"), result.text(&["driver"]));
            naming::validate_pool(errors, &path.child("pool"), result.text(&["pool"]));
            names::check(errors, &path.child("device"), result.text(&["device"]), names::dns_label);
            device::validate_binding_conditions(errors, &path, result);
            if let Some(share) = result["shareID"].as_str() {
                naming::validate_share(errors, &path.child("shareID"), share);
            }
        }
    }
    let configurations = allocation.items(&["devices", "config"]);
    let at = devices.child("config");
    if naming::within(errors, &at, configurations.len(), MAX_CONFIGURATIONS) {
        for (index, config) in configurations.iter().enumerate() {
            let path = at.index(index);
            match config.text(&["source"]) {
                "" => errors.required(&path.child("source"), ""),
                source => checks::one_of(errors, &path.child("source"), source, &["FromClaim", "FromClass"]),
            }
            known.validate_list(errors, &path.child("requests"), config.items(&["requests"]));
            configuration::validate(errors, &path, config, false);
        }
    }
    if allocation.has(&["nodeSelector"]) {
        scheduling::node_selector(errors, &allocation["nodeSelector"], false, &path.child("nodeSelector"));
    }
}
