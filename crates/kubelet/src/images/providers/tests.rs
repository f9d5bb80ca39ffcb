use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;

/// Service accounts that exist, by name; tokens are numbered.
#[derive(Default)]
struct FakeAccounts {
    tokens: AtomicUsize,
}

impl Accounts for FakeAccounts {
    fn account<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<ServiceAccount, String>> {
        Box::pin(async move {
            match name {
                "missing" => Err(format!("serviceaccounts {name:?} not found")),
                "plain" => Ok(serde_json::from_value(json!({ "metadata": { "uid": "1" } })).expect("an account")),
                _ => Ok(serde_json::from_value(json!({ "metadata": { "uid": format!("uid-of-{namespace}-{name}"),
                    "annotations": { "needed": "yes", "extra": name, "other": "x" } } }))
                .expect("an account")),
            }
        })
    }

    fn token<'a>(&'a self, _: &'a Pod, audience: &'a str) -> BoxFuture<'a, Result<String, String>> {
        let number = self.tokens.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { Ok(format!("token-{audience}-{number}")) })
    }
}

struct Node {
    directory: tempfile::TempDir,
    providers: Providers,
}

/// A node with one provider; the script runs with its request in `$REQUEST`, and every run is counted.
fn node(script: &str, rest: &str) -> Node {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let text = format!(
        "#!/bin/sh\nREQUEST=$(cat)\necho run >> {}\nrespond() {{ echo '{{\"kind\":\"CredentialProviderResponse\",\
         \"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",'\"$1\"'}}'; }}\n{script}\n",
        path("runs").display()
    );
    std::fs::write(path("one"), text).expect("written");
    std::fs::set_permissions(path("one"), std::fs::Permissions::from_mode(0o755)).expect("executable");
    let configuration = format!(
        "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\nproviders:\n- name: one\n  \
         matchImages: [r.io]\n  defaultCacheDuration: 1h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n{rest}"
    );
    std::fs::write(path("config.yaml"), configuration).expect("written");
    let files =
        CredentialProviderFiles { configuration: path("config.yaml"), directory: directory.path().to_path_buf() };
    let accounts = Arc::new(FakeAccounts::default());
    let providers = Providers::open(Some(&files), accounts, Arc::default()).expect("valid");
    Node { directory, providers }
}

impl Node {
    fn runs(&self) -> usize {
        std::fs::read_to_string(self.directory.path().join("runs")).unwrap_or_default().lines().count()
    }

    async fn user(&self, account: &str, image: &str) -> Option<String> {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u" },
            "spec": { "containers": [], "serviceAccountName": account } }))
        .expect("a pod");
        let provided = self.providers.provide(&pod, image).await;
        provided.first().map(|(logins, _)| logins["r.io"].username.clone())
    }
}

const AUTH: &str = "\\\"auth\\\":{\\\"r.io\\\":{\\\"username\\\":\\\"u\\\",\\\"password\\\":\\\"p\\\"}}";

fn responds(kind: &str, more: &str) -> String {
    format!("respond \"\\\"cacheKeyType\\\":\\\"{kind}\\\",{more}{AUTH}\"")
}

#[tokio::test]
async fn responses_are_cached_as_they_say() {
    for (kind, more, images, expected) in [
        ("Image", "", ["r.io/a", "r.io/a", "r.io/b"], 2),
        ("Registry", "", ["r.io/a", "r.io/b", "r.io/c"], 1),
        ("Global", "", ["r.io/a", "r.io/b", "r.io/c"], 1),
        ("Global", "\\\"cacheDuration\\\":\\\"0s\\\",", ["r.io/a", "r.io/a", "r.io/a"], 3),
        ("Global", "\\\"cacheDuration\\\":\\\"5m\\\",", ["r.io/a", "r.io/a", "r.io/a"], 1),
    ] {
        let node = node(&responds(kind, more), "");
        for image in images {
            assert_eq!(node.user("", image).await.as_deref(), Some("u"), "{kind} {image}");
        }
        assert_eq!(node.runs(), expected, "{kind} {more}");
        assert!(!node.providers.cover("s.io/a") && node.user("", "s.io/a").await.is_none());
        assert_eq!(node.runs(), expected, "{kind} {more}");
    }
    let node = node(&responds("Sometimes", ""), "");
    assert_eq!(node.user("", "r.io/a").await, None);
}

#[tokio::test]
async fn the_same_question_is_asked_once_at_a_time() {
    let node = node(&format!("sleep 0.3; {}", responds("Image", "\\\"cacheDuration\\\":\\\"0s\\\",")), "");
    let users = futures::future::join_all((0..20).map(|_| node.user("", "r.io/a"))).await;
    assert!(users.iter().all(|user| user.as_deref() == Some("u")));
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn tokens_are_of_the_pod_s_service_account() {
    let attributes = |require: bool, cache: &str, required: &str| {
        format!(
            "  tokenAttributes: {{serviceAccountTokenAudience: aud, cacheType: {cache}, requireServiceAccount: {require}, \
             requiredServiceAccountAnnotationKeys: [{required}], optionalServiceAccountAnnotationKeys: [extra]}}\n"
        )
    };
    let reply = responds("Global", "");
    let checked = format!(
        "case \"$REQUEST\" in *'\"serviceAccountToken\":\"token-aud-'*) ;; *) exit 1;; esac\n\
         case \"$REQUEST\" in *'\"extra\":\"a\"'*) ;; *'\"extra\":\"b\"'*) ;; *) exit 1;; esac\n\
         case \"$REQUEST\" in *other*) exit 1;; esac\n{reply}"
    );
    let echoes = "T=$(echo \"$REQUEST\" | sed 's/.*\"serviceAccountToken\":\"\\([^\"]*\\)\".*/\\1/')\n\
        respond \"\\\"cacheKeyType\\\":\\\"Global\\\",\\\"auth\\\":{\\\"r.io\\\":{\\\"username\\\":\\\"u\\\",\\\"password\\\":\\\"$T\\\"}}\"";
    for (script, rest, accounts, found, runs) in [
        // One entry of the cache per service account.
        (&checked, attributes(true, "ServiceAccount", "needed"), ["a", "a", "b"], [true, true, true], 2),
        // One per token.
        (&checked, attributes(true, "Token", "needed"), ["a", "a", "b"], [true, true, true], 3),
        // Not asked without a service account, without an annotation, or for one that does not exist.
        (&checked, attributes(true, "ServiceAccount", "needed"), ["", "plain", "missing"], [false; 3], 0),
        // A pod without a service account gets what the plugin gives without a token.
        (&reply, attributes(false, "ServiceAccount", ""), ["", "", ""], [true; 3], 1),
        (&echoes.to_owned(), attributes(true, "ServiceAccount", ""), ["a", "a", "a"], [false; 3], 3),
        (&echoes.to_owned(), attributes(true, "Token", ""), ["a", "a", "a"], [true; 3], 3),
    ] {
        let node = node(script, &rest);
        for (account, found) in accounts.iter().zip(found) {
            assert_eq!(node.user(account, "r.io/a").await.is_some(), found, "{rest} {account}");
        }
        assert_eq!(node.runs(), runs, "{rest}");
    }
}

#[test]
fn programs_must_be_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |directory: &Path| {
        let configuration = directory.join("config.yaml");
        let files = CredentialProviderFiles { configuration, directory: directory.to_path_buf() };
        let opened = Providers::open(Some(&files), Arc::new(FakeAccounts::default()), Arc::default());
        opened.err().map(|error| error.to_string())
    };
    let missing = directory.path().join("none");
    let expected = format!("plugin binary directory {} did not exist", missing.display());
    assert_eq!(open(&missing), Some(expected));
    let Node { directory, .. } = node("", "");
    std::fs::remove_file(directory.path().join("one")).expect("removed");
    let program = directory.path().join("one");
    let expected = format!("plugin binary executable {} did not exist", program.display());
    assert_eq!(open(directory.path()), Some(expected));
}
