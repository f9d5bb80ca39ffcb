//! DenyServiceExternalIPs: refuses new external addresses of services, with which a user could redirect traffic of any
//! address to their own pods.

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

pub struct DenyServiceExternalIps;

#[async_trait]
impl Plugin for DenyServiceExternalIps {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update) && write.is("", "services")
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let addresses = |service: &Value| service.items(&["spec", "externalIPs"]).to_vec();
        let known = write.old.map(addresses).unwrap_or_default();
        match addresses(write.object).iter().all(|address| known.contains(address)) {
            true => Ok(()),
            false => Err(write.forbidden("Use of external IPs is denied by admission control")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    #[tokio::test]
    async fn only_addresses_that_were_there_stay() {
        let service = |addresses: &[&str]| json!({"kind": "Service", "metadata": {"name": "s", "namespace": "n"}, "spec": {"externalIPs": addresses}});
        let refused = "services \"s\" is forbidden: Use of external IPs is denied by admission control";
        for (resource, new, old, expected) in [
            ("services", &[][..], None, Ok(())),
            ("services", &["192.0.2.1"][..], None, Err(refused.to_owned())),
            ("services", &["192.0.2.1"], Some(&["192.0.2.1", "192.0.2.2"][..]), Ok(())),
            ("services", &["192.0.2.1", "192.0.2.3"], Some(&["192.0.2.1"]), Err(refused.to_owned())),
            ("services/status", &["192.0.2.1"], Some(&[]), Ok(())),
        ] {
            let operation = if old.is_some() { Operation::Update } else { Operation::Create };
            let (new, old) = (service(new), old.map(service));
            let outcome =
                run(&DenyServiceExternalIps, operation, ("", resource), new, old, &Fixed::new(vec![])).await.map(drop);
            assert_eq!(outcome, expected, "{resource}");
        }
    }
}
