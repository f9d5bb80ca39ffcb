//! The table of the API server's configuration fields, compared with what reads these files.

use std::path::Path;

use knarr_apiserver::admit::EnabledPlugins;
use knarr_apiserver::authenticate::jwt::Configuration as Authentication;
use knarr_apiserver::authorize::Configuration as Authorization;
use knarr_apiserver::encrypt;
use knarr_apiserver::outbound::egress::Egress;
use knarr_component_flags::{Effect, ServerField, server_fields};
use serde_json::{Value, json};

/// A document with nothing but this field.
fn document(field: &ServerField, path: &str) -> Value {
    let leaf = match field.type_name {
        "bool" => json!(true),
        "int32" => json!(5),
        "duration" => json!("5s"),
        "IdentityConfiguration" | "runtime.Unknown" => json!({}),
        list if list.starts_with("[]string") => json!(["a"]),
        list if list.starts_with("[]") => json!([]),
        _ => json!("a"),
    };
    let mut value = path.split('.').rev().fold(leaf, |inner, step| match step.strip_suffix("[]") {
        Some(name) => json!({ name: [inner] }),
        None => json!({ step: inner }),
    });
    if !field.group.is_empty() {
        value["kind"] = field.kind.into();
        value["apiVersion"] = format!("{}/{}", field.group, field.version).into();
    }
    value
}

/// What reading the document as the file of its kind gives.
fn read(directory: &Path, kind: &str, group: &str, text: &str) -> Option<Result<(), String>> {
    let plugin = |name: &str| {
        let path = directory.join("admission.yaml");
        let plugins = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{{name: {name}, configuration: \
             {text}}}]"
        );
        std::fs::write(&path, plugins).unwrap();
        EnabledPlugins::new(&[name.to_owned()], &[], Some(&path)).map(drop).map_err(|error| error.to_string())
    };
    let file = directory.join("file.yaml");
    std::fs::write(&file, text).unwrap();
    Some(match (kind, group) {
        ("AdmissionConfiguration", _) => {
            EnabledPlugins::new(&[], &[], Some(&file)).map(drop).map_err(|error| error.to_string())
        }
        ("AuthenticationConfiguration", _) => {
            Authentication::parse(text, &[]).map(drop).map_err(|error| error.to_string())
        }
        ("AuthorizationConfiguration", _) => {
            Authorization::parse(text, None).map(drop).map_err(|error| error.to_string())
        }
        ("EgressSelectorConfiguration", _) => Egress::read(&file).map(drop).map_err(|error| error.to_string()),
        ("ResourceQuotaConfiguration", _) => plugin("ResourceQuota"),
        ("WebhookAdmissionConfiguration", _) => plugin("ValidatingAdmissionWebhook"),
        ("PodSecurityConfiguration", _) => plugin("PodSecurity"),
        ("Configuration", "eventratelimit.admission.k8s.io") => plugin("EventRateLimit"),
        ("EncryptionConfiguration", _) => {
            encrypt::Configuration::parse(text).map(drop).map_err(|error| error.to_string())
        }
        ("TracingConfiguration", _) => {
            knarr_traces::Configuration::parse(text).map(drop).map_err(|error| error.to_string())
        }
        _ => return None,
    })
}

#[test]
fn every_field_that_works_is_read_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for field in server_fields() {
        let text = document(field, field.path).to_string();
        let Some(outcome) = read(directory.path(), field.kind, field.group, &text) else { continue };
        let is_unknown = outcome.as_ref().is_err_and(|error| error.contains("unknown field"));
        match field.effect {
            Effect::Refused(_) if outcome.is_ok() => wrong.push(format!("{text} is accepted")),
            Effect::Works | Effect::Partly(_) | Effect::Ignored(_) if is_unknown => {
                wrong.push(format!("{text}: {outcome:?}"));
            }
            _ => {}
        }
        // What stands beside a field is not read by accident.
        let is_lenient = matches!(field.kind, "EncryptionConfiguration" | "TracingConfiguration");
        let unknown = document(field, &format!("{}Other", field.path)).to_string();
        let outcome = read(directory.path(), field.kind, field.group, &unknown);
        if !is_lenient && !outcome.is_some_and(|outcome| outcome.is_err_and(|error| error.contains("unknown field"))) {
            wrong.push(format!("{unknown} is not refused"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
