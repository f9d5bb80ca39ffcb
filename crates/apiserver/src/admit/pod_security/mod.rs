//! PodSecurity: checks pods against the levels that their namespace's labels set. Violations of the enforced level are
//! refused, those of the audit level are recorded, and those of the warn level become warnings.

mod checks;
mod configuration;
mod level;

use async_trait::async_trait;
use knarr_api::field::Errors;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;
use checks::evaluate;
pub use configuration::PodSecuritySettings;
use level::{Level, LevelVersion, PREFIX, Policy};

/// How many existing pods are checked when a namespace gets a stricter level.
const MAX_PODS_CHECKED: usize = 3000;

#[derive(Default)]
pub struct PodSecurity(pub PodSecuritySettings);

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        if !matches!(write.operation, Operation::Create | Operation::Update) {
            return false;
        }
        let pods = write.is_part_of("", "pods") && matches!(write.subresource, "" | "ephemeralcontainers" | "resize");
        pods || write.is("", "namespaces") || (write.subresource.is_empty() && template(write).is_some())
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if write.is("", "namespaces") {
            return self.check_namespace(write, objects);
        }
        if let Some(exempt) = self.0.exemption(write, template(write)) {
            if let Some(call) = write.call {
                call.annotate(format!("{PREFIX}exempt"), exempt.to_owned());
            }
            return Ok(());
        }
        let Some(namespace) = objects.read("", "namespaces", "", write.namespace)? else {
            return Err(Status::internal(format!("failed to lookup namespace {:?}", write.namespace)));
        };
        let (policy, errors) = Policy::of(namespace.at(&["metadata", "labels"]), self.0.defaults);
        let verdict = match write.is_part_of("", "pods") {
            true => check_pod(write.object, write.old, &policy, &errors),
            // Workloads only cause warnings; their pods are refused at creation.
            false => template(write).map(|template| check_template(template, &policy, &errors)).unwrap_or_default(),
        };
        if let Some(call) = write.call {
            for (key, value) in verdict.annotations {
                call.annotate(format!("{PREFIX}{key}"), value);
            }
        }
        write.warnings.extend(verdict.warning);
        verdict.refusal.map_or(Ok(()), |why| Err(write.forbidden(why)))
    }
}

/// The result of checking a pod against a namespace's policy.
#[derive(Debug, Default, PartialEq)]
struct Verdict {
    refusal: Option<String>,
    warning: Option<String>,
    /// Audit annotations, keys without their prefix.
    annotations: Vec<(&'static str, String)>,
}

fn check_pod(pod: &Value, old: Option<&Value>, policy: &Policy, errors: &Errors) -> Verdict {
    let is_privileged = |level: LevelVersion| level.level == Level::Privileged;
    if errors.is_empty() && [policy.enforce, policy.audit, policy.warn].into_iter().all(is_privileged) {
        return Verdict { annotations: vec![("enforce-policy", "privileged:latest".to_owned())], ..Verdict::default() };
    }
    if old.is_some_and(|old| !images_changed(pod, old)) {
        return Verdict::default();
    }
    evaluate_pod(pod, policy, errors, true)
}

fn check_template(template: &Value, policy: &Policy, errors: &Errors) -> Verdict {
    if errors.is_empty() && policy.warn.level == Level::Privileged && policy.audit.level == Level::Privileged {
        return Verdict::default();
    }
    evaluate_pod(template, policy, errors, false)
}

fn evaluate_pod(pod: &Value, policy: &Policy, errors: &Errors, enforces: bool) -> Verdict {
    let mut verdict = Verdict::default();
    if !errors.is_empty() {
        verdict.annotations.push(("error", format!("Failed to parse policy: {}", aggregated(errors))));
    }
    if enforces {
        verdict.annotations.push(("enforce-policy", policy.enforce.to_string()));
        verdict.refusal = violation("violates", policy.enforce, pod);
    }
    let recorded = violation("would violate", policy.audit, pod);
    verdict.annotations.extend(recorded.map(|violation| ("audit-violations", violation)));
    // Refused requests get no warnings.
    if verdict.refusal.is_none() {
        verdict.warning = violation("would violate", policy.warn, pod);
    }
    verdict
}

/// Several errors as one message.
fn aggregated(errors: &Errors) -> String {
    match errors.0.as_slice() {
        [one] => one.to_string(),
        many => format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn violation(verb: &str, level: LevelVersion, pod: &Value) -> Option<String> {
    let violations = evaluate(level, pod);
    (!violations.is_empty()).then(|| format!("{verb} PodSecurity \"{level}\": {}", details(&violations)))
}

fn details(violations: &[checks::Violation]) -> String {
    let texts: Vec<String> = violations.iter().map(|v| format!("{} ({})", v.reason, v.detail)).collect();
    texts.join(", ")
}

/// The pod template of a workload.
fn template<'a>(write: &'a Write<'_>) -> Option<&'a Value> {
    let path: &[&str] = match (write.group, write.resource) {
        ("", "replicationcontrollers") => &["spec", "template"],
        ("", "podtemplates") => &["template"],
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") | ("batch", "jobs") => {
            &["spec", "template"]
        }
        ("batch", "cronjobs") => &["spec", "jobTemplate", "spec", "template"],
        _ => return None,
    };
    Some(write.object.at(path)).filter(|template| template.is_object())
}

/// Whether an update of a pod changes anything that is checked: images or added containers.
fn images_changed(pod: &Value, old: &Value) -> bool {
    let images = |pod: &Value, list: &str| -> Vec<(String, String)> {
        let containers = pod.items(&["spec", list]).iter();
        containers.map(|c| (c.text(&["name"]).to_owned(), c.text(&["image"]).to_owned())).collect()
    };
    ["containers", "initContainers", "ephemeralContainers"].iter().any(|list| images(pod, list) != images(old, list))
}

impl PodSecurity {
    fn check_namespace(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let (policy, errors) = Policy::of(write.object.at(&["metadata", "labels"]), self.0.defaults);
        let (old_policy, old_errors) = match write.old {
            Some(old) => Policy::of(old.at(&["metadata", "labels"]), self.0.defaults),
            None => (policy, Errors::new()),
        };
        let unchanged = write.operation == Operation::Update && errors == old_errors;
        if !errors.is_empty() && !unchanged {
            return Err(Status::invalid(GroupResource { group: "", name: "Namespace" }, write.name, &errors));
        }
        let relaxed =
            policy.enforce.version == old_policy.enforce.version && policy.enforce.level <= old_policy.enforce.level;
        if write.operation == Operation::Create || policy.enforce.level == Level::Privileged || relaxed {
            return Ok(());
        }
        if self.0.exempts_namespace(write.name) {
            let shown = policy.full();
            let why = "is exempt from Pod Security, and the policy";
            write.warnings.push(format!("namespace {:?} {why} ({shown}) will be ignored", write.name));
            return Ok(());
        }
        let pods = objects.read_all("", "pods", write.name)?;
        write.warnings.extend(violating_pods(write.name, &policy, &pods));
        Ok(())
    }
}

/// Warnings about existing pods that violate the new level; equal pods are reported once.
fn violating_pods(namespace: &str, policy: &Policy, pods: &[std::sync::Arc<Value>]) -> Vec<String> {
    let mut by_reason: Vec<(String, Vec<&str>)> = Vec::new();
    for pod in pods.iter().take(MAX_PODS_CHECKED) {
        let violations = evaluate(policy.enforce, pod);
        if violations.is_empty() {
            continue;
        }
        let reason = violations.iter().map(|v| v.reason.as_str()).collect::<Vec<_>>().join(", ");
        let name = pod.text(&["metadata", "name"]);
        match by_reason.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(name),
            None => by_reason.push((reason, vec![name])),
        }
    }
    let mut warnings = Vec::new();
    if pods.len() > MAX_PODS_CHECKED {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {MAX_PODS_CHECKED} of {} existing pods",
            pods.len()
        ));
    }
    if !by_reason.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{}\"",
            policy.enforce
        ));
    }
    let mut lines: Vec<String> = by_reason
        .iter()
        .map(|(reason, names)| {
            let first = names.iter().min().copied().unwrap_or_default();
            match names.len() {
                1 => format!("{first}: {reason}"),
                2 => format!("{first} (and 1 other pod): {reason}"),
                count => format!("{first} (and {} other pods): {reason}", count - 1),
            }
        })
        .collect();
    lines.sort();
    warnings.extend(lines);
    warnings
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::audit::{Audit, Backend, BatchSettings, Log, LogSettings, Mode};
    use crate::object_reader::tests::Fixed;
    use crate::request_tests::{Cluster, admin};
    use http_body_util::BodyExt;
    use serde_json::json;
    use std::sync::Arc;

    fn namespaces(level: &str) -> Fixed {
        let labels = json!({"pod-security.kubernetes.io/enforce": level});
        Fixed::new(vec![("", "namespaces", json!({"metadata": {"name": "n", "labels": labels}}))])
    }

    fn pod(container: Value) -> Value {
        let mut container = container;
        container["name"] = "c".into();
        json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [container]}})
    }

    #[tokio::test]
    async fn pods_that_violate_the_enforced_level_are_refused() {
        let create = |level: &'static str, pod: Value| async move {
            run(&PodSecurity::default(), Operation::Create, ("", "pods"), pod, None, &namespaces(level)).await
        };
        let privileged = pod(json!({"securityContext": {"privileged": true}}));
        assert!(create("privileged", privileged.clone()).await.is_ok());
        assert_eq!(
            create("baseline", privileged).await.unwrap_err(),
            "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": privileged (container \"c\" must not set \
             securityContext.privileged=true)"
        );
        assert_eq!(
            create("restricted", pod(json!({}))).await.unwrap_err(),
            "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false \
             (container \"c\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities \
             (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or \
             container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must \
             set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
        let good = pod(json!({"securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}}));
        assert!(create("restricted", good).await.is_ok());
    }

    #[tokio::test]
    async fn a_wrong_level_is_refused() {
        let labels = json!({"pod-security.kubernetes.io/enforce": "strict"});
        let namespace = json!({"kind": "Namespace", "metadata": {"name": "n", "labels": labels}});
        let none = Fixed::new(vec![]);
        let refused = run(&PodSecurity::default(), Operation::Create, ("", "namespaces"), namespace, None, &none).await;
        assert!(refused.unwrap_err().contains("must be one of privileged, baseline, restricted"));
    }

    /// Through the server: an annotation of the audit event, and a header of the response.
    #[tokio::test]
    async fn violations_are_recorded_and_warned_of() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = Log::open(LogSettings { path: path.clone(), ..Default::default() }).unwrap();
        let (backend, _) = Backend::new(Arc::new(log), Mode::Blocking, BatchSettings::LOG, None);
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]";
        let cluster = Cluster::new().await;
        let labels = json!({format!("{PREFIX}audit"): "baseline", format!("{PREFIX}warn"): "baseline"});
        let namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "n", "labels": labels}});
        assert_eq!(cluster.json("POST", "/api/v1/namespaces", namespace).await.0, 201);
        let account = json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}});
        assert_eq!(cluster.json("POST", "/api/v1/namespaces/n/serviceaccounts", account).await.0, 201);
        let audit = Audit::new(crate::audit::Policy::parse(policy).unwrap(), vec![backend]);
        assert!(cluster.server().telemetry.audit.set(Arc::new(audit)).is_ok());
        let mut pod = pod(json!({"image": "i", "securityContext": {"privileged": true}}));
        pod["apiVersion"] = "v1".into();
        let request = http::Request::post("/api/v1/namespaces/n/pods").header("content-type", "application/json");
        let request = request.body(http_body_util::Full::new(bytes::Bytes::from(pod.to_string()))).unwrap();
        let response = cluster.server().handle(request, &admin()).await;
        assert_eq!(response.status().as_u16(), 201);
        let warning = response.headers()[http::header::WARNING].to_str().unwrap().to_owned();
        assert!(warning.contains("would violate PodSecurity \\\"baseline:latest\\\": privileged"), "{warning}");
        drop(response.into_body().collect().await.unwrap());
        let events = std::fs::read_to_string(&path).unwrap();
        let event: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
        let annotation = |key: &str| event["annotations"][format!("{PREFIX}{key}")].as_str().unwrap_or_default();
        let recorded = annotation("audit-violations");
        assert!(recorded.starts_with("would violate PodSecurity \"baseline:latest\": privileged"), "{event}");
        assert_eq!(annotation("enforce-policy"), "privileged:latest");
    }

    #[test]
    fn each_mode_of_a_policy_has_its_outcome() {
        let namespace = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(mode, level)| (format!("{PREFIX}{mode}"), Value::from(*level)));
            Policy::of(&Value::Object(labels.collect()), Policy::default())
        };
        let privileged = pod(json!({"securityContext": {"privileged": true}}));
        let detail = "privileged (container \"c\" must not set securityContext.privileged=true)";
        let audited = ("audit-violations", format!("would violate PodSecurity \"baseline:v1.30\": {detail}"));
        let enforced = |level: &str| ("enforce-policy", level.to_owned());

        let (policy, errors) = namespace(&[]);
        let verdict = check_pod(&privileged, None, &policy, &errors);
        assert_eq!(verdict.annotations, [enforced("privileged:latest")]);

        let (policy, errors) = namespace(&[("audit", "baseline"), ("audit-version", "v1.30")]);
        let verdict = check_pod(&privileged, None, &policy, &errors);
        assert_eq!((verdict.refusal, verdict.warning), (None, None));
        assert_eq!(verdict.annotations, [enforced("privileged:latest"), audited.clone()]);
        assert_eq!(check_template(&privileged, &policy, &errors).annotations, [audited]);
        assert_eq!(check_pod(&privileged, Some(&privileged), &policy, &errors), Verdict::default());

        let (policy, errors) = namespace(&[("enforce", "baseline")]);
        let verdict = check_pod(&privileged, None, &policy, &errors);
        assert_eq!(verdict.refusal, Some(format!("violates PodSecurity \"baseline:latest\": {detail}")));
        assert_eq!((verdict.warning, verdict.annotations), (None, vec![enforced("baseline:latest")]));

        let (policy, errors) = namespace(&[("audit", "strict")]);
        let verdict = check_pod(&privileged, None, &policy, &errors);
        let (key, value) = &verdict.annotations[0];
        assert!(*key == "error" && value.starts_with("Failed to parse policy: metadata.labels["), "{key}: {value}");
    }
}
