//! HelmChart objects, with a program in the place of Helm that records how it is called.

use std::os::unix::fs::PermissionsExt as _;

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
