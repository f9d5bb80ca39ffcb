//! Image garbage collection: removes unused images when the disk fills up, least recently used first.

use std::collections::HashSet;

use knarr_cri::messages::{ContainerFilter, Image};
use std::time::Duration;
use tokio::time::Instant;

use super::{Images, Thresholds};
use crate::filesystem::usage_of;

impl Images {
    /// Removes images that were unused for too long, if there is a limit, and frees space if the image file system is
    /// fuller than the high threshold. Returns the freed bytes; `all` removes every unused image.
    pub async fn collect_garbage(&self, all: bool) -> Result<u64, String> {
        let runtime = &self.0.runtime;
        let is_importing = !*self.0.loaded.borrow() && self.0.loaded.has_changed().is_ok();
        if is_importing {
            // The node's archives would count as images that nobody has used since the start.
            return Ok(0);
        }
        let images = runtime.list_images().await.map_err(|error| error.to_string())?;
        self.record_present(&images);
        // Whether an image is used is known only from the start of this process on.
        let max_age = self.0.settings.max_age.filter(|age| self.0.opened_at.elapsed() > *age);
        let bytes_to_free = self.bytes_to_free(all).await?;
        if bytes_to_free == 0 && max_age.is_none() {
            return Ok(0);
        }
        self.remove_stale_records(images.iter().map(|image| image.id.as_str()));
        let containers =
            runtime.list_containers(ContainerFilter::default()).await.map_err(|error| error.to_string())?;
        let pinned = runtime.pinned_images().await.map_err(|error| error.to_string())?;
        let used: HashSet<String> = containers.into_iter().map(|container| container.image_ref).collect();
        let removable = images.into_iter().filter(|image| !is_pinned(image, &pinned) && !used.contains(&image.id));
        let ages = Ages { min: self.0.settings.min_age, max: max_age };
        let chosen = choose(removable.collect(), |id| self.last_used(id), Instant::now(), &ages, bytes_to_free);
        let mut freed = 0;
        for (image, reason) in chosen {
            match runtime.remove_image(&image.id).await {
                Ok(()) => {
                    freed += image.size;
                    self.0.metrics.count("kubelet_image_garbage_collected_total", &[("reason", reason)]);
                }
                Err(error) => tracing::warn!(%error, image = image.id, "cannot remove an image"),
            }
        }
        Ok(freed)
    }

    /// How much must be removed to bring the image file system from above the high threshold below the low one.
    async fn bytes_to_free(&self, all: bool) -> Result<u64, String> {
        if all {
            return Ok(u64::MAX);
        }
        let info = self.0.runtime.image_fs_info().await.map_err(|error| error.to_string())?;
        let point =
            info.image_filesystems.first().and_then(|usage| usage.fs_id.as_ref()).map(|id| id.mountpoint.clone());
        let usage = point.and_then(|point| usage_of(std::path::Path::new(&point)));
        let Some(usage) = usage else { return Ok(0) };
        let percent = (usage.available * 100).checked_div(usage.capacity).map_or(0, |free| 100 - free);
        let Thresholds { high, low } = self.0.thresholds;
        if high >= 100 || percent < u64::from(high) {
            return Ok(0);
        }
        Ok((usage.capacity * (100 - u64::from(low.min(high))) / 100).saturating_sub(usage.available))
    }
}

/// Whether the image is pinned by any of its names.
fn is_pinned(image: &Image, pinned: &HashSet<String>) -> bool {
    image.pinned || image.repo_tags.iter().chain(&image.repo_digests).any(|name| pinned.contains(name))
}

/// How long an image must be unused before it may be removed for space, and until it is removed in any case.
struct Ages {
    min: Duration,
    max: Option<Duration>,
}

/// The unused images to remove, each with the reason.
fn choose(
    images: Vec<Image>,
    last_used: impl Fn(&str) -> Option<Instant>,
    now: Instant,
    ages: &Ages,
    bytes_to_free: u64,
) -> Vec<(Image, &'static str)> {
    let is_older = |image: &Image, age| last_used(&image.id).is_none_or(|at| now.saturating_duration_since(at) >= age);
    let is_pause = |image: &Image| image.repo_tags.iter().any(|tag| tag == knarr_cri::containerd::PAUSE_IMAGE);
    let mut unused: Vec<Image> = images.into_iter().filter(|image| !is_pause(image)).collect();
    unused.sort_by_key(|image| last_used(&image.id));
    let mut sum = 0u64;
    let mut chosen = Vec::new();
    for image in unused {
        let reason = if ages.max.is_some_and(|max| is_older(&image, max)) {
            "age"
        } else if sum < bytes_to_free && is_older(&image, ages.min) {
            "space"
        } else {
            continue;
        };
        sum = sum.saturating_add(image.size);
        chosen.push((image, reason));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_images_stay() {
        let pinned = HashSet::from(["localhost/a:1".to_string()]);
        let image = |tags: &[&str], pinned| Image {
            repo_tags: tags.iter().map(ToString::to_string).collect(),
            pinned,
            ..Default::default()
        };
        for (image, expected) in [
            (image(&["docker.io/library/b:1", "localhost/a:1"], false), true),
            (image(&["docker.io/library/b:1"], false), false),
            (image(&["docker.io/library/b:1"], true), true),
            (image(&[], false), false),
        ] {
            assert_eq!(is_pinned(&image, &pinned), expected, "{image:?}");
        }
    }

    #[test]
    fn the_longest_unused_go_first_and_no_more_than_needed() {
        let image = |id: &str, size| Image { id: id.into(), size, ..Default::default() };
        let images = vec![image("new", 10), image("old", 10), image("just", 10)];
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let last = |id: &str| match id {
            "new" => Some(at(500)),
            "just" => Some(at(990)),
            _ => None,
        };
        let names = |bytes_to_free, max: Option<u64>| -> Vec<String> {
            let ages = Ages { min: Duration::from_secs(120), max: max.map(Duration::from_secs) };
            let chosen = choose(images.clone(), last, at(1000), &ages, bytes_to_free);
            chosen.into_iter().map(|(image, reason)| format!("{} {reason}", image.id)).collect()
        };
        assert_eq!(names(5, None), ["old space"]);
        assert_eq!(names(15, None), ["old space", "new space"]);
        assert_eq!(names(u64::MAX, None), ["old space", "new space"]);
        assert_eq!(names(0, None), Vec::<String>::new());
        assert_eq!(names(0, Some(400)), ["old age", "new age"]);
        assert_eq!(names(15, Some(600)), ["old age", "new space"]);
    }
}
