//! `knarr ui`: a link that opens the cluster's page in a browser, signed in as the user of the kubeconfig.

use clap::Args;
use http::Request;
use knarr_client::kube;
use serde::Deserialize;

use super::client_arguments::ClientArguments;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    cluster: ClientArguments,
}

#[derive(Deserialize)]
struct Link {
    code: String,
    #[serde(rename = "expiresInSeconds")]
    expires_in_seconds: u64,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = arguments.cluster.config().await?;
    let client = arguments.cluster.client().await?;
    let request = Request::post("/ui/link").body(Vec::new())?;
    let link: Link = client.request(request).await.map_err(explain)?;
    println!("{}", address(&config.cluster_url, &link.code));
    eprintln!(
        "The link works once, within {} seconds. A browser that does not know the cluster's certificate authority warns \
         about the certificate.",
        link.expires_in_seconds
    );
    Ok(())
}

fn explain(error: kube::Error) -> anyhow::Error {
    let is_absent = matches!(&error, kube::Error::Api(status) if status.code == 404);
    let context = if is_absent { "this API server has no page: it is not Knarr's" } else { "cannot create a link" };
    anyhow::Error::new(error).context(context)
}

/// The code follows `#`, which browsers do not send, so that no log of a proxy has it.
fn address(server: &http::Uri, code: &str) -> String {
    format!("{}/ui/#login={code}", server.to_string().trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_stays_in_the_browser() {
        let server = "https://10.0.0.1:6443/".parse().unwrap();
        assert_eq!(address(&server, "c"), "https://10.0.0.1:6443/ui/#login=c");
    }
}
