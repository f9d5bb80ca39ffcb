//! Measures the steps of creating a pod (decode, normalize, track ownership, encode) and prints microseconds for each.

use knarr_api::apply::{SingleVersion, Tracker};
use knarr_api::decode;
use knarr_api::schema::builtin;
use serde_json::Value;
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 20_000;

const BODY: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"load-0001","namespace":"default","labels":{"app":"load",
"tier":"backend","run":"1"},"annotations":{"example.com/owner":"someone","example.com/note":"a longer text that says something"}},
"spec":{"containers":[{"name":"main","image":"registry.example.com/team/app:1.2.3","command":["/bin/app"],"args":["--port=8080",
"--verbose"],"env":[{"name":"A","value":"1"},{"name":"B","value":"2"},{"name":"POD_IP","valueFrom":{"fieldRef":{"apiVersion":"v1",
"fieldPath":"status.podIP"}}}],"ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],"resources":{"requests":{"cpu":"100m",
"memory":"128Mi"},"limits":{"memory":"256Mi"}},"livenessProbe":{"httpGet":{"path":"/healthz","port":8080,"scheme":"HTTP"},
"periodSeconds":10,"timeoutSeconds":1,"successThreshold":1,"failureThreshold":3},"volumeMounts":[{"name":"data","mountPath":"/data"}],
"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],
"volumes":[{"name":"data","emptyDir":{}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst",
"securityContext":{},"schedulerName":"default-scheduler","enableServiceLinks":true}}"#;

fn main() {
    let start = Instant::now();
    let schema = builtin();
    println!("schema read        {:>8.1} µs", micros(start.elapsed()));
    let Some(pod) = schema.kind("", "v1", "Pod") else { return };
    let tracker = Tracker {
        node: pod,
        api_version: "v1",
        kind: "Pod",
        subresource: "",
        ignored: None,
        versions: &SingleVersion,
        now: "2026-01-01T00:00:00Z",
    };
    let decoded = decode_pod();
    let mut normalized = decoded.clone();
    decode::normalize(&mut normalized, pod);
    let mut tracked = normalized.clone();
    tracker.update(None, &mut tracked, "pod-cost");
    let mut changed = tracked.clone();
    changed["metadata"]["labels"]["app"] = "other".into();
    changed["metadata"]["uid"] = "u".into();

    println!("body {} bytes, object {} bytes", BODY.len(), tracked.to_string().len());
    measure("type_meta", || (), |()| black_box(decode::type_meta(BODY.as_bytes())));
    measure("decode", || (), |()| black_box(decode_pod()));
    measure("serde_json alone", || (), |()| black_box(serde_json::from_str::<Value>(BODY)));
    measure("normalize", || decoded.clone(), |mut object| decode::normalize(black_box(&mut object), pod));
    measure("track create", || normalized.clone(), |mut object| tracker.update(None, black_box(&mut object), "m"));
    measure(
        "track update",
        || changed.clone(),
        |mut object| tracker.update(Some(&tracked), black_box(&mut object), "m"),
    );
    measure("encode", || (), |()| black_box(serde_json::to_vec(&tracked)));
    measure("clone", || (), |()| black_box(tracked.clone()));
}

fn decode_pod() -> Value {
    let Some(pod) = builtin().kind("", "v1", "Pod") else { return Value::Null };
    decode::json(BODY.as_bytes(), pod).map(|decoded| decoded.value).unwrap_or_default()
}

/// Measures a step without its setup. Its input is dropped within the measured time.
fn measure<T, R>(name: &str, prepare: impl Fn() -> T, step: impl Fn(T) -> R) {
    let mut total = Duration::ZERO;
    for _ in 0..ROUNDS {
        let given = prepare();
        let start = Instant::now();
        black_box(step(given));
        total += start.elapsed();
    }
    println!("{name:<18} {:>8.1} µs", micros(total) / f64::from(ROUNDS));
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
