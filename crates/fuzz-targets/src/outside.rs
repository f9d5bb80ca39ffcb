//! Targets that read what other programs send: runtimes, drivers, servers, and the command lines of tools.

// Those of the binary's files that are compiled into this crate.
use {anyhow as _, aws_lc_rs as _, base64 as _, rand as _, serde as _, sha2 as _};

use knarr_component_flags::{CommandLine, Component, Given, configure, parse};
use knarr_csi::messages;
use prost::Message as _;
use serde_json::Value;

use crate::access::{Access, Sources};
use crate::release::{Release, SecretValue, SecretValues};
use crate::seal::Sealed;
use crate::spec::ChartSpec;

/// A command line of one of Kubernetes' components: a byte for the component, then one word a line.
pub fn command_line(input: &[u8]) {
    let Some((component, text)) = component(input) else { return };
    let words: Vec<String> = text.split('\n').map(str::to_owned).collect();
    match parse(component, &words) {
        Ok(CommandLine::Run(_) | CommandLine::Help | CommandLine::Version(_)) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A configuration file of one of Kubernetes' components.
pub fn component_configuration(input: &[u8]) {
    let Some((component, text)) = component(input) else { return };
    let Ok(read) = knarr_api::decode::untyped_yaml(text.as_bytes()) else { return };
    for flags_win in [true, false] {
        let _ = configure(&mut Given::empty(component), &read.value, flags_win);
    }
}

fn component(input: &[u8]) -> Option<(Component, &str)> {
    let (first, rest) = input.split_first()?;
    Some((Component::ALL[usize::from(*first) % Component::ALL.len()], std::str::from_utf8(rest).ok()?))
}

/// Responses of CSI drivers and registrations of plugins. Printing a request shows no secret.
pub fn csi_message(input: &[u8]) {
    let Some((first, message)) = input.split_first() else { return };
    macro_rules! decode {
        ($($number:literal: $message:ident,)*) => {
            match first % 12 {
                $($number => drop(messages::$message::decode(message).map(|read| format!("{read:?}"))),)*
                _ => {}
            }
        };
    }
    decode! {
        0: PluginInfo,
        1: NodeGetInfoResponse,
        2: NodeGetCapabilitiesResponse,
        3: NodeGetVolumeStatsResponse,
        4: NodePublishVolumeRequest,
        5: CreateVolumeRequest,
        6: CreateVolumeResponse,
        7: ListVolumesResponse,
        8: CreateSnapshotResponse,
        9: ControllerPublishVolumeResponse,
        10: GetCapacityResponse,
        11: NodeExpandVolumeResponse,
    }
    if let Ok(text) = std::str::from_utf8(message)
        && let Ok(path) = knarr_csi::socket_path(text)
    {
        assert!(path.is_absolute());
    }
}

/// A HelmChart's specification: whatever it says, Helm gets no flag that it chooses, and no file of the host as a chart. The input
/// is also the content of the Secrets and the ConfigMap that the chart names.
pub fn helm_chart(input: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(input) else { return };
    let Ok(spec) = serde_json::from_value::<ChartSpec>(value) else { return };
    let data = |keys: &[&str]| Some(keys.iter().map(|key| ((*key).to_owned(), input.to_vec())).collect());
    let sources = [
        Sources::default(),
        Sources { auth: data(&["username", "password"]), registry: None, authorities: data(&["ca.crt"]) },
        Sources { auth: data(&["tls.crt", "tls.key"]), registry: data(&[".dockerconfigjson"]), authorities: None },
    ];
    for (config, sources) in sources.iter().flat_map(|sources| [(None, sources), (Some(&spec), sources)]) {
        let Ok(access) = Access::plan(&spec, sources) else { continue };
        check_release(&spec, config, access);
    }
}

fn check_release(spec: &ChartSpec, config: Option<&ChartSpec>, access: Access) {
    let secret = |text: &str| SecretValue { content: text.into(), ignores_updates: text.is_empty() };
    let secrets = SecretValues { chart: vec![secret("x: 1"), secret("")], config: vec![secret("y: 1")] };
    let Ok(release) = Release::plan(("a", "values-b"), spec, config, secrets, access) else { return };
    let end = release.arguments.iter().rposition(|word| word == "--").expect("flags end");
    assert_eq!(release.arguments.len(), end + 3);
    let chart = &release.arguments[end + 2];
    let is_remote = ["https://", "http://", "oci://"].iter().any(|scheme| chart.starts_with(scheme));
    let is_name = !chart.starts_with(['/', '.', '-']) && chart.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_given = chart == "./chart.tgz" && release.has_file("chart.tgz");
    assert!(is_remote || is_given || is_name, "{chart}");
    assert!(release.listing()[1..].iter().all(|word| word.starts_with("--")));
    assert!(release.arguments[..end].iter().skip(1).all(|word| word.starts_with("--")), "{:?}", release.arguments);
    let mut names: Vec<&str> = release.files.iter().map(|file| file.name.as_str()).collect();
    assert!(names.iter().all(|name| !name.contains('/')));
    names.sort_unstable();
    assert!(names.windows(2).all(|two| two[0] != two[1]), "a file replaces another: {names:?}");
    let _ = release.hash();
    assert_eq!(Release::removal(&release.name, &release.namespace).last(), Some(&release.name));
    assert_eq!(release.rollback().last(), Some(&release.name));
}

/// Paths, ranges and manifests of a registry's clients.
pub fn registry_request(input: &[u8]) {
    knarr_registry::fuzzing::request(input);
}

/// What a server sends to one that joins: nothing that was not sealed with the token's secret is opened.
pub fn sealed_bundle(input: &[u8]) {
    if let Ok(sealed) = serde_json::from_slice::<Sealed>(input) {
        assert!(sealed.open("0123456789abcdef").is_err());
    }
    let sealed = Sealed::new("0123456789abcdef", input.to_vec()).expect("anything can be sealed");
    assert_eq!(sealed.open("0123456789abcdef").ok().as_deref(), Some(input));
    assert!(sealed.open("0123456789abcdeg").is_err());
}

/// A tunnel's connection, from either side: first byte even, what a server sends to a node; odd, what a node sends.
pub fn tunnel(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else { return };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(knarr_tunnel::fuzzing::connection(first % 2 == 0, bytes));
}

/// A client's connection on a unix socket: its frames in pieces of the size in the first byte, or, with its highest bit, to a
/// server.
pub fn unix_connection(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else { return };
    if first & 0x80 == 0 {
        return knarr_csi::fuzzing::frames(usize::from(*first), bytes);
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(knarr_csi::fuzzing::connection(bytes));
}
