//! Flags of how a node pulls and removes images, and of its own containerd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use knarr_cri::containerd::{Snippet, read_snippets};
use knarr_kubelet::{CredentialProviderFiles, Settings, Verification};

use super::common;
use super::leadership::duration;
use crate::paths::is_default;

#[derive(Args, Clone, Debug)]
pub struct ImageArguments {
    /// Disk usage in percent above which unused images are removed; 100 disables it.
    #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u8).range(..=100))]
    pub image_gc_high_threshold: u8,
    /// Disk usage in percent down to which unused images are removed.
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u8).range(..=100))]
    pub image_gc_low_threshold: u8,
    /// How long an image must be unused before it is removed for space.
    #[arg(long, default_value = "2m0s", value_parser = duration)]
    pub minimum_image_ttl_duration: Duration,
    /// How long an image may be unused until it is removed in any case; 0 keeps it until space is needed.
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub image_maximum_gc_age: Duration,
    /// How many images are pulled at a time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_parallel_image_pulls: u16,
    /// CredentialProviderConfig file, or a directory of such files.
    #[arg(long, value_name = "FILE", requires = "image_credential_provider_bin_dir")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Directory of credential provider plugins.
    #[arg(long, value_name = "DIRECTORY", requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// For which images on the node pods must show credentials: NeverVerify, NeverVerifyPreloadedImages,
    /// NeverVerifyAllowlistedImages or AlwaysVerify.
    #[arg(long, value_name = "POLICY", default_value = "NeverVerifyPreloadedImages")]
    pub image_pull_credentials_verification_policy: String,
    /// Images for which the policy NeverVerifyAllowlistedImages asks for no credentials, such as registry.local/team/*.
    #[arg(long, value_name = "IMAGE", value_delimiter = ',')]
    pub preloaded_images_verification_allowlist: Vec<String>,
    /// Registries file with mirrors, credentials and TLS files for Knarr's own containerd; /etc/knarr/registries.yaml with the
    /// default data directory.
    #[arg(long, value_name = "FILE")]
    pub private_registry: Option<PathBuf>,
    /// Directory of snippets (*.toml) for the configuration of Knarr's own containerd; /etc/knarr/containerd with the default
    /// data directory.
    #[arg(long, value_name = "DIRECTORY")]
    pub containerd_config_dir: Option<PathBuf>,
}

impl ImageArguments {
    pub fn apply(&self, settings: &mut Settings) -> anyhow::Result<()> {
        let (high, low) = (self.image_gc_high_threshold, self.image_gc_low_threshold);
        if low >= high {
            bail!(
                "invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than \
                 imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
            );
        }
        settings.image_gc_high_percent = high;
        settings.image_gc_low_percent = low;
        let (min, max) = (self.minimum_image_ttl_duration, self.image_maximum_gc_age);
        if !max.is_zero() && max <= min {
            bail!("invalid configuration: imageMaximumGCAge {max:?} must be greater than imageMinimumGCAge {min:?}");
        }
        settings.images.min_age = min;
        settings.images.max_age = Some(max).filter(|age| !age.is_zero());
        settings.images.max_parallel_pulls = self.max_parallel_image_pulls.into();
        settings.images.verification = Verification::parse(
            &self.image_pull_credentials_verification_policy,
            &self.preloaded_images_verification_allowlist,
        )
        .map_err(anyhow::Error::msg)?;
        let files = self.image_credential_provider_config.as_ref().zip(self.image_credential_provider_bin_dir.as_ref());
        settings.images.credential_providers = files.map(|(configuration, directory)| CredentialProviderFiles {
            configuration: configuration.clone(),
            directory: directory.clone(),
        });
        Ok(())
    }

    /// The registries file, if a node with this data directory has one.
    pub fn registries_file(&self, data: &Path) -> Option<PathBuf> {
        let usual = is_default(data).then(|| Path::new(common::CONFIGURATION).join("registries.yaml"));
        self.private_registry.clone().or(usual)
    }

    /// The snippets for containerd's configuration.
    pub fn containerd_snippets(&self, data: &Path) -> anyhow::Result<Vec<Snippet>> {
        let usual = is_default(data).then(|| Path::new(common::CONFIGURATION).join("containerd"));
        let directory = self.containerd_config_dir.clone().or(usual);
        Ok(directory.map(|directory| read_snippets(&directory)).transpose()?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        images: ImageArguments,
    }

    fn apply(words: &[&str]) -> anyhow::Result<Settings> {
        let images = Line::try_parse_from(["knarr"].iter().chain(words))?.images;
        let mut settings = Settings::new("node", "/data", String::new());
        images.apply(&mut settings)?;
        Ok(settings)
    }

    #[test]
    fn flags_become_settings() {
        let settings = apply(&["--image-maximum-gc-age=24h", "--max-parallel-image-pulls=1"]).unwrap();
        assert_eq!(settings.images.max_age, Some(Duration::from_secs(86_400)));
        assert_eq!((settings.images.max_parallel_pulls, settings.images.min_age.as_secs()), (1, 120));
        for wrong in [
            "--image-gc-high-threshold=80",
            "--image-maximum-gc-age=1m",
            "--max-parallel-image-pulls=0",
            "--image-credential-provider-config=/x",
            "--image-pull-credentials-verification-policy=Sometimes",
            "--preloaded-images-verification-allowlist=a",
        ] {
            assert!(apply(&[wrong]).is_err(), "{wrong}");
        }
    }
}
