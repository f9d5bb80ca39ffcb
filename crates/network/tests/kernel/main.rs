//! The network against the kernel: pods, Services and routes in network namespaces that the tests create.
//!
//! Each scenario runs in its own process and network namespace, so nothing reaches the host's network. Started with
//! `CNI_COMMAND` set, this program is the CNI plugin, as the real binary is.

mod api;
mod balancers;
mod endpoints;
mod frames;
mod host;
mod hostile;
mod pods;
mod policies;
mod scale;
mod services;

use std::process::{Command, ExitCode};

type Scenario = (&'static str, fn());

const SCENARIOS: &[Scenario] = &[
    ("pods_get_addresses_and_reach_each_other", pods::pods_get_addresses_and_reach_each_other),
    ("host_ports_and_bandwidth", pods::host_ports_and_bandwidth),
    ("nodes_reach_each_other", pods::nodes_reach_each_other),
    ("services_forward_to_pods", services::services_forward_to_pods),
    ("near_endpoints_are_preferred", endpoints::near_endpoints_are_preferred),
    ("terminating_endpoints_serve_when_no_other_does", endpoints::terminating_endpoints_serve_when_no_other_does),
    ("traffic_from_inside_stays_on_the_node_where_asked", endpoints::traffic_from_inside_stays_on_the_node_where_asked),
    ("clients_keep_their_endpoint_for_a_time", endpoints::clients_keep_their_endpoint_for_a_time),
    ("health_ports_report_local_endpoints", endpoints::health_ports_report_local_endpoints),
    ("connections_outlive_the_proxy", services::connections_outlive_the_proxy),
    ("neighbours_learn_where_a_balancer_s_address_is", balancers::neighbours_learn_where_a_balancer_s_address_is),
    ("a_node_s_loopback_is_out_of_reach", hostile::a_node_s_loopback_is_out_of_reach),
    ("pods_cannot_spoof_addresses", hostile::pods_cannot_spoof_addresses),
    ("no_pod_is_attached_without_the_guard", hostile::no_pod_is_attached_without_the_guard),
    ("only_nodes_send_into_the_tunnel", hostile::only_nodes_send_into_the_tunnel),
    ("pods_are_no_routers", hostile::pods_are_no_routers),
    ("pods_on_the_bridge_are_adopted", hostile::pods_on_the_bridge_are_adopted),
    ("host_ports_capture_nothing_of_others", services::host_ports_capture_nothing_of_others),
    ("services_capture_no_port_of_a_node", services::services_capture_no_port_of_a_node),
    ("a_crafted_frame_is_held_back", policies::a_crafted_frame_is_held_back),
    ("a_new_pod_is_isolated_at_once", policies::a_new_pod_is_isolated_at_once),
    ("policies_decide_which_connections_succeed", policies::policies_decide_which_connections_succeed),
    ("many_services", scale::many_services),
];

fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_some() {
        return knarr_network::cni_main();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = arguments.as_slice()
        && flag == "--scenario"
    {
        let Some((_, run)) = SCENARIOS.iter().find(|(known, _)| known == name) else { return ExitCode::FAILURE };
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            eprintln!("no network namespace can be made: {error}");
            return ExitCode::FAILURE;
        }
        run();
        return ExitCode::SUCCESS;
    }
    if !knarr_test_host::has(&["root"]) {
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let mut failed = 0;
    for (name, _) in SCENARIOS.iter().filter(|(name, _)| name.contains(&filter)) {
        let own = std::env::current_exe().expect("the path of this program");
        let status = Command::new(own).args(["--scenario", name]).status().expect("a process");
        println!("scenario {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        failed += u32::from(!status.success());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
