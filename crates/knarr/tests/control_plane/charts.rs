//! HelmChart objects, with a program in the place of Helm that records how it is called, and with Helm itself where it is on
//! the `PATH`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::{ControlPlane, wait_for};

const HELM: &str = r#"#!/bin/sh
echo "$@" >>"$HOME/calls"
echo "$KUBECONFIG" >"$HOME/kubeconfig"
case $* in *broken*) echo "Error: this chart is broken" >&2; exit 1 ;; esac
case $1 in
    list) echo '[]' ;;
    upgrade) for word in "$@"; do case $word in --values=*) cat "${word#--values=}" >>"$HOME/values" ;; esac; done ;;
esac
"#;

fn chart(name: &str, spec: &str) -> String {
    let metadata = format!("metadata: {{name: {name}, namespace: default}}");
    format!("apiVersion: helm.cattle.io/v1\nkind: HelmChart\n{metadata}\nspec: {spec}\n")
}

#[test]
fn charts_are_installed_configured_and_removed_by_helm() {
    let plane = ControlPlane::server_with(ControlPlane::empty(), &["--helm-controller".to_owned()]);
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments);
    let apply = |text: &str| {
        let file = plane.data().join("object.yaml");
        std::fs::write(&file, text).expect("a file");
        wait_for("the kind of charts", || kubectl(&["apply", "-f", &file.to_string_lossy()]).is_ok());
    };
    let condition = |name: &str| {
        let path = "-o=jsonpath={.status.conditions[?(@.type==\"Installed\")].status} {.status.conditions[0].message}";
        kubectl(&["get", "helmchart", name, path]).unwrap_or_default()
    };
    let recorded = |file: &str| std::fs::read_to_string(plane.data().join("helm").join(file)).unwrap_or_default();

    let has_helm = std::process::Command::new("helm").arg("version").output().is_ok();
    if !has_helm {
        apply(&chart("early", "{chart: web, repo: 'https://charts.invalid'}"));
        wait_for("the missing program", || condition("early").contains("False Helm is not installed on this server"));
    }
    let helm = plane.data().join("bin/helm");
    std::fs::create_dir_all(plane.data().join("bin")).expect("a directory");
    std::fs::write(&helm, HELM).expect("a program");
    std::fs::set_permissions(&helm, std::fs::Permissions::from_mode(0o755)).expect("its permissions");

    apply(&chart(
        "web",
        "{chart: web, repo: 'https://charts.invalid', targetNamespace: shop, valuesContent: 'size: 1'}",
    ));
    wait_for("the chart", || condition("web").starts_with("True"));
    assert!(recorded("calls").contains("upgrade --install --namespace=shop"), "{}", recorded("calls"));
    assert!(recorded("values").contains("size: 1"), "{}", recorded("values"));

    // A configuration adds values, which installs the chart again; a chart that stays as it is is left alone.
    let config = chart("web", "{valuesContent: 'colour: red'}").replace("HelmChart", "HelmChartConfig");
    apply(&config);
    wait_for("the configuration", || recorded("values").contains("colour: red"));
    assert_eq!(recorded("calls").matches("-- web web").count(), 2, "{}", recorded("calls"));

    apply(&chart("broken", "{chart: 'oci://registry.invalid/broken'}"));
    wait_for("the failure", || condition("broken").contains("False Error: this chart is broken"));
    apply(&chart("file", "{chart: /etc/passwd, repo: 'https://charts.invalid'}"));
    wait_for("the refusal", || condition("file").contains("neither the name of a chart nor an address"));

    // Helm acts as a user of its own, which is no administrator but by its binding.
    let kubeconfig = recorded("kubeconfig");
    assert_eq!(kubeconfig.trim(), plane.data().join("helm/kubeconfig.yaml").to_string_lossy());
    let who = "-o=jsonpath={.status.userInfo.username} {.status.userInfo.groups}";
    let who = kubectl(&["--kubeconfig", kubeconfig.trim(), "auth", "whoami", who]).expect("an identity");
    assert_eq!(who.trim(), "knarr:charts [\"system:authenticated\"]");

    kubectl(&["delete", "helmchart", "web", "--timeout=60s"]).expect("the chart is removed");
    assert!(
        recorded("calls").contains("uninstall --ignore-not-found --namespace=shop -- web"),
        "{}",
        recorded("calls")
    );
}

const TEMPLATE: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: '{{ .Release.Name }}-map'}
data: {size: '{{ .Values.size }}', colour: '{{ .Values.colour }}'}
{{ if .Values.isBroken }}{{ fail \"this chart is broken\" }}{{ end }}
";
const PASSWORD: &str = "hunter2-hunter2";

/// The archive of a chart with a ConfigMap.
fn archive() -> Vec<u8> {
    let compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut archive = tar::Builder::new(compressed);
    for (name, text) in [
        ("web/Chart.yaml", "{apiVersion: v2, name: web, version: 1.0.0}"),
        ("web/values.yaml", "{size: 1, colour: blue}"),
        ("web/templates/map.yaml", TEMPLATE),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, text.as_bytes()).expect("a file");
    }
    archive.into_inner().and_then(|compressed| compressed.finish()).expect("an archive")
}

/// A repository of charts that asks for a user and a password. It ends with the test.
fn serve_repository(archive: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let index = format!(
        "apiVersion: v1\nentries:\n  web:\n  - {{apiVersion: v2, name: web, version: 1.0.0, urls: ['{address}/web-1.0.0.tgz']}}\n"
    );
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A client that left needs no response.
            let _ = respond(connection, index.as_bytes(), &archive);
        }
    });
    address
}

fn respond(connection: TcpStream, index: &[u8], archive: &[u8]) -> std::io::Result<()> {
    let mut head = Vec::new();
    for line in BufReader::new(&connection).lines() {
        match line? {
            line if line.is_empty() => break,
            line => head.push(line),
        }
    }
    let expected = format!("Authorization: Basic {}", STANDARD.encode(format!("ann:{PASSWORD}")));
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let (status, body): (&str, &[u8]) = match path.as_str() {
        _ if !head.contains(&expected) => ("401 Unauthorized", b""),
        "/index.yaml" => ("200 OK", index),
        "/web-1.0.0.tgz" => ("200 OK", archive),
        _ => ("404 Not Found", b""),
    };
    let mut connection = &connection;
    write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    connection.write_all(body)
}

/// Debian has no package of Helm, so this test is left out where Helm is missing, even in CI. The test above runs the same
/// code with a script in its place.
#[test]
fn helm_itself_installs_upgrades_and_removes_charts() {
    if std::process::Command::new("helm").arg("version").output().is_err() {
        eprintln!("skipped: helm is not installed");
        return;
    }
    let plane = ControlPlane::server_with(ControlPlane::empty(), &["--helm-controller".to_owned()]);
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments);
    let apply = |text: &str| {
        let file = plane.data().join("object.yaml");
        std::fs::write(&file, text).expect("a file");
        wait_for("the kind of charts", || kubectl(&["apply", "-f", &file.to_string_lossy()]).is_ok());
    };
    let data = |name: &str| kubectl(&["get", "configmap", &format!("{name}-map"), "-o=jsonpath={.data}"]);
    let holds = |name: &str, text: &str| data(name).is_ok_and(|data| data.contains(text));
    let message = |name: &str| {
        kubectl(&["get", "helmchart", name, "-o=jsonpath={.status.conditions[0].message}"]).unwrap_or_default()
    };
    let content = STANDARD.encode(archive());

    apply(&chart("within", &format!("{{chartContent: {content}}}")));
    wait_for("the chart", || holds("within", r#""size":"1""#));
    apply(&chart("within", &format!("{{chartContent: {content}, valuesContent: 'size: 2'}}")));
    wait_for("the upgrade", || holds("within", r#""size":"2""#));
    apply(&chart("within", "{valuesContent: 'size: 3'}").replace("HelmChart", "HelmChartConfig"));
    wait_for("the configuration", || holds("within", r#""size":"3""#));
    apply(&chart("within", &format!("{{chartContent: {content}, values: {{isBroken: true}}}}")));
    wait_for("the failure", || message("within").contains("this chart is broken"));
    // A new specification does not wait for the retry of the old one.
    apply(&chart("within", &format!("{{chartContent: {content}, values: {{colour: red}}}}")));
    wait_for("the repair", || holds("within", r#""colour":"red""#));

    let repository = serve_repository(archive());
    for (name, password) in [("right", PASSWORD), ("wrong", "not-the-password")] {
        let password = format!("--from-literal=password={password}");
        kubectl(&["create", "secret", "generic", name, "--from-literal=username=ann", &password]).expect("a Secret");
        apply(&chart(name, &format!("{{chart: web, repo: '{repository}', authSecret: {{name: {name}}}}}")));
    }
    wait_for("the chart of the repository", || holds("right", r#""size":"1""#));
    wait_for("the refusal", || message("wrong").contains("401"));
    assert!(!message("wrong").contains("not-the-password"), "{}", message("wrong"));

    kubectl(&["delete", "helmchart", "within", "right", "wrong", "--timeout=120s"]).expect("the charts are removed");
    assert!(data("within").is_err() && data("right").is_err(), "their objects are removed with them");
    let releases = kubectl(&["get", "secrets", "-l", "owner=helm", "-o", "name"]).expect("a list");
    assert_eq!(releases, "", "and so are their releases");
}
