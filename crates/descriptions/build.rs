//! Collects the descriptions of all types and fields from the typed API's schemas, and compresses them.

use std::collections::BTreeMap;
use std::io::Write;
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use k8s_openapi_described::api::{
    admissionregistration, apps, authentication, authorization, autoscaling, batch, certificates, coordination, core,
    discovery, events, flowcontrol, networking, node, policy, rbac, resource, scheduling, storage,
};
use k8s_openapi_described::apiextensions_apiserver::pkg::apis::apiextensions;
use k8s_openapi_described::apimachinery::pkg::{apis::meta, runtime::RawExtension, version};
use k8s_openapi_described::kube_aggregator::pkg::apis::apiregistration;
use k8s_openapi_described::schemars::SchemaGenerator;
use serde_json::Value;

macro_rules! describe {
    ($generator:ident: $($kind:ty),+ $(,)?) => {
        $($generator.subschema_for::<$kind>();)+
    };
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut generator = SchemaGenerator::default();
    // These refer to all other types.
    describe!(generator:
        admissionregistration::v1::MutatingAdmissionPolicy,
        admissionregistration::v1::MutatingAdmissionPolicyBinding,
        admissionregistration::v1::MutatingWebhookConfiguration,
        admissionregistration::v1::ValidatingAdmissionPolicy,
        admissionregistration::v1::ValidatingAdmissionPolicyBinding,
        admissionregistration::v1::ValidatingWebhookConfiguration,
        apiextensions::v1::CustomResourceDefinition,
        apiregistration::v1::APIService,
        apps::v1::ControllerRevision,
        apps::v1::DaemonSet,
        apps::v1::Deployment,
        apps::v1::ReplicaSet,
        apps::v1::StatefulSet,
        authentication::v1::SelfSubjectReview,
        authentication::v1::TokenRequest,
        authentication::v1::TokenReview,
        authorization::v1::LocalSubjectAccessReview,
        authorization::v1::SelfSubjectAccessReview,
        authorization::v1::SelfSubjectRulesReview,
        authorization::v1::SubjectAccessReview,
        autoscaling::v1::HorizontalPodAutoscaler,
        autoscaling::v1::Scale,
        autoscaling::v2::HorizontalPodAutoscaler,
        batch::v1::CronJob,
        batch::v1::Job,
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        core::v1::Binding,
        core::v1::ComponentStatus,
        core::v1::ConfigMap,
        core::v1::Endpoints,
        core::v1::Event,
        core::v1::LimitRange,
        core::v1::Namespace,
        core::v1::Node,
        core::v1::PersistentVolume,
        core::v1::PersistentVolumeClaim,
        core::v1::Pod,
        core::v1::PodTemplate,
        core::v1::ReplicationController,
        core::v1::ResourceQuota,
        core::v1::Secret,
        core::v1::Service,
        core::v1::ServiceAccount,
        discovery::v1::EndpointSlice,
        events::v1::Event,
        flowcontrol::v1::FlowSchema,
        flowcontrol::v1::PriorityLevelConfiguration,
        meta::v1::APIGroup,
        meta::v1::APIGroupList,
        meta::v1::APIResourceList,
        meta::v1::APIVersions,
        meta::v1::DeleteOptions,
        meta::v1::Patch,
        meta::v1::Status,
        meta::v1::WatchEvent<RawExtension>,
        networking::v1::IPAddress,
        networking::v1::Ingress,
        networking::v1::IngressClass,
        networking::v1::NetworkPolicy,
        networking::v1::ServiceCIDR,
        node::v1::RuntimeClass,
        policy::v1::Eviction,
        policy::v1::PodDisruptionBudget,
        rbac::v1::ClusterRole,
        rbac::v1::ClusterRoleBinding,
        rbac::v1::Role,
        rbac::v1::RoleBinding,
        resource::v1::DeviceClass,
        resource::v1::ResourceClaim,
        resource::v1::ResourceClaimTemplate,
        resource::v1::ResourceSlice,
        scheduling::v1::PriorityClass,
        storage::v1::CSIDriver,
        storage::v1::CSINode,
        storage::v1::CSIStorageCapacity,
        storage::v1::StorageClass,
        storage::v1::VolumeAttachment,
        storage::v1::VolumeAttributesClass,
        version::Info,
    );
    let table = fs::File::create(format!("{}/descriptions.deflated", env::var("OUT_DIR")?))?;
    let mut table = DeflateEncoder::new(table, Compression::best());
    for ((name, field), description) in collect(generator.definitions()) {
        // The format that the library reads: type, field and description, each terminated by a zero byte.
        for text in [name, field, description] {
            table.write_all(text.as_bytes())?;
            table.write_all(&[0])?;
        }
    }
    table.finish()?;
    Ok(())
}

fn collect(definitions: &serde_json::Map<String, Value>) -> BTreeMap<(&str, &str), &str> {
    let mut found = BTreeMap::new();
    for (name, schema) in definitions {
        if let Some(description) = schema["description"].as_str() {
            found.insert((name.as_str(), ""), description);
        }
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(description) = property["description"].as_str() {
                found.insert((name.as_str(), field.as_str()), description);
            }
        }
    }
    found
}
