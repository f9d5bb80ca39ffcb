#!/bin/sh
# Installs Knarr on this host, upgrades it, or removes it again.
#
#   ./install.sh [--from FILE|URL] [--sha256 SUM] [server|agent [FLAGS]]
#   ./install.sh --uninstall [--yes]
#
# FILE is a binary such as knarr-0.1.0-linux-amd64; by default the one beside this script. Its checksum is looked up in the file
# SHA256SUMS beside it, or given. With `server` or `agent` a service is installed, with the flags of that command.
# Packages that a node needs and that are missing are installed by the host's package manager; --uninstall removes those again,
# unless something that was installed since needs them.
set -eu
# Lists of packages are sorted and compared.
export LC_ALL=C

PROGRAM=/usr/local/bin/knarr
RECORD=/usr/local/share/knarr/installed-packages
# Where Debian's packages ask whether their services may start.
POLICY=/usr/sbin/policy-rc.d

say() { echo "install.sh: $*"; }
fail() { echo "install.sh: $*" >&2; exit 1; }

usage() { sed -n '/^#   /s/^#   //p' "$0"; }

# The name that release files have for this host's architecture.
architecture() {
    case $(uname -m) in
        x86_64 | amd64) echo amd64 ;;
        aarch64 | arm64) echo arm64 ;;
        *) fail "there is no binary for $(uname -m)" ;;
    esac
}

is_url() { case $1 in http://* | https://*) true ;; *) false ;; esac; }

# Copies a file or URL to a path.
get() {
    if ! is_url "$1"; then
        cp -- "$1" "$2"
    elif command -v curl >/dev/null; then
        # What was asked for with TLS is not followed to a place without.
        curl -fsSL --proto-redir =https --retry 3 -o "$2" -- "$1"
    elif command -v wget >/dev/null; then
        wget -q -O "$2" -- "$1"
    else
        fail "neither curl nor wget is installed: download $1 and use --from FILE"
    fi
}

# The only binary for this host beside the script.
beside() {
    directory=$(dirname -- "$0")
    found=
    for file in "$directory"/knarr-*-linux-"$(architecture)"; do
        [ -f "$file" ] || continue
        [ -z "$found" ] || fail "there are several binaries beside this script: choose one with --from"
        found=$file
    done
    [ -n "$found" ] || fail "there is no binary beside this script: use --from FILE or --from URL"
    echo "$found"
}

# The checksum of a file or URL, from the list beside it.
listed_checksum() {
    # Whoever can replace the file on its way can replace the list, too.
    case $1 in http://*) fail "$1 is not protected by TLS: use https, or --sha256 with a checksum that you trust" ;; esac
    name=${1##*/}
    list=$scratch/SHA256SUMS
    case $1 in
        */*) get "${1%/*}/SHA256SUMS" "$list" ;;
        *) get SHA256SUMS "$list" ;;
    esac || fail "cannot get the checksum of $name: use --sha256"
    awk -v name="$name" '$2 == name || $2 == "*" name { print $1 }' "$list"
}

verify() {
    actual=$(sha256sum "$1" | cut -d' ' -f1)
    [ -n "$2" ] || fail "SHA256SUMS has no line for $source: use --sha256"
    [ "$actual" = "$2" ] || fail "$source is not what was published: its checksum is $actual, not $2"
}

# The host's package manager.
manager() {
    for name in apt-get dnf yum apk zypper pacman; do
        if command -v $name >/dev/null; then echo $name; return; fi
    done
    echo none
}

# The package that has a program, in the words of a package manager.
package_of() {
    case $1:$2 in
        conntrack:apt-get) echo conntrack ;;
        conntrack:*) echo conntrack-tools ;;
        ip:apk | ip:pacman | ip:apt-get | ip:zypper) echo iproute2 ;;
        ip:*) echo iproute ;;
        nft:*) echo nftables ;;
        mkfs.ext4:*) echo e2fsprogs ;;
        nsenter:*) echo util-linux ;;
        *) echo "$1" ;;
    esac
}

# Whether a program is there. BusyBox' ip knows no network namespaces.
has() {
    command -v "$1" >/dev/null || return 1
    case $1:$(readlink -f "$(command -v "$1")") in ip:*/busybox) return 1 ;; esac
}

missing_packages() {
    for program in containerd runc nft ip nsenter conntrack mkfs.ext4; do
        has $program || package_of $program "$1"
    done | sort -u
}

# Services that packages bring must not start: Knarr runs a containerd of its own.
without_services() {
    if [ -e $POLICY ]; then "$@"; return; fi
    placed=yes
    printf '#!/bin/sh\nexit 101\n' >$POLICY
    chmod +x $POLICY
    status=0
    "$@" || status=$?
    rm -f $POLICY
    placed=
    return $status
}

add_packages() {
    manager=$1
    shift
    case $manager in
        apt-get)
            apt-get update -qq
            without_services env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
            ;;
        dnf | yum) $manager install -y -q "$@" >/dev/null ;;
        apk) apk add --quiet "$@" ;;
        zypper) zypper --non-interactive --quiet install --no-recommends "$@" >/dev/null ;;
        pacman) pacman -Sy --noconfirm --needed --quiet "$@" >/dev/null ;;
        *) fail "install these with your package manager, and run this again: $*" ;;
    esac
}

# The names of all installed packages.
installed_packages() {
    case $1 in
        apt-get) dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' | sed -n 's/^ii  *//p' ;;
        dnf | yum | zypper) rpm -qa --queryformat '%{NAME}\n' ;;
        apk) apk info --quiet ;;
        pacman) pacman -Qq ;;
    esac | sort -u
}

# Removes exactly these packages. None of the commands removes others that need them, or that nothing needs any more.
drop_packages() {
    manager=$1
    shift
    case $manager in
        apt-get)
            apt-get -s purge "$@" 2>/dev/null | awk '/^(Purg|Remv) / { print $2 }' | sort -u >"$scratch/purged"
            printf '%s\n' "$@" | sort -u >"$scratch/recorded"
            [ -z "$(comm -23 "$scratch/purged" "$scratch/recorded")" ] || return 1
            # Debian calls some of them protected; this host did without.
            DEBIAN_FRONTEND=noninteractive apt-get purge -y -qq --allow-remove-essential "$@" >/dev/null
            ;;
        dnf | yum | zypper) rpm --erase "$@" ;;
        apk) apk del --quiet "$@" ;;
        pacman) pacman -Rn --noconfirm "$@" >/dev/null ;;
        *) return 1 ;;
    esac
}

# Adds names of packages to the record.
record() {
    mkdir -p "$(dirname $RECORD)"
    touch $RECORD
    sort -u - $RECORD >"$scratch/record"
    cp "$scratch/record" $RECORD
}

install_packages() {
    manager=$(manager)
    missing=$(missing_packages "$manager")
    [ -n "$missing" ] || return 0
    say "installing $(echo $missing) with $manager"
    # Before they are installed: an interrupted run must not forget them.
    printf '%s\n' $missing | record
    installed_packages "$manager" >"$scratch/before"
    status=0
    add_packages "$manager" $missing || status=$?
    # With what they depend on, and also of a run that failed.
    installed_packages "$manager" | comm -13 "$scratch/before" - | record
    [ $status = 0 ] || fail "$manager cannot install: $(echo $missing)"
    rest=$(missing_packages "$manager")
    [ -z "$rest" ] || fail "$manager does not have: $(echo $rest)"
}

install() {
    [ -n "$source" ] || source=$(beside)
    say "installing ${source##*/}"
    get "$source" "$scratch/knarr" || fail "cannot get $source"
    [ -n "$checksum" ] || checksum=$(listed_checksum "$source")
    verify "$scratch/knarr" "$checksum"
    chmod 755 "$scratch/knarr"
    new=$("$scratch/knarr" --version) || fail "this binary does not run here"
    install_packages
    if [ -x $PROGRAM ]; then
        old=$($PROGRAM --version || echo unknown)
        # The new program says whether it can use what the old one stored, before anything is replaced.
        "$scratch/knarr" check --upgrade || fail "nothing was changed"
        say "upgrading $old to $new"
    fi
    mkdir -p "$(dirname $PROGRAM)"
    cp "$scratch/knarr" $PROGRAM.new
    mv -f $PROGRAM.new $PROGRAM
    say "installed $new as $PROGRAM"
    if [ $# -gt 0 ]; then
        $PROGRAM install "$@"
    else
        restart
    fi
}

# Makes a running service use the new program. Pods run on meanwhile.
restart() {
    running=
    if [ -d /run/systemd/system ]; then
        for unit in knarr.service knarr-agent.service; do
            if systemctl --quiet is-active $unit; then running="$running $unit"; fi
        done
    fi
    if [ -n "$running" ]; then
        say "restarting$running"
        systemctl restart $running
    elif [ -n "${old:-}" ]; then
        say "a Knarr that runs keeps the old program until it is restarted"
    else
        say "start a cluster with: knarr server (or, as a service: knarr install server)"
    fi
}

uninstall() {
    if [ -x $PROGRAM ]; then
        if [ "$yes" = yes ]; then $PROGRAM uninstall --yes; else $PROGRAM uninstall; fi
        rm -f $PROGRAM
    fi
    if [ -s $RECORD ]; then
        installed_packages "$(manager)" | comm -12 - $RECORD >"$scratch/record"
        packages=$(echo $(cat "$scratch/record"))
        say "removing the packages that were installed for it: $packages"
        [ -z "$packages" ] || drop_packages "$(manager)" $packages || say "they stay: something else needs them, or they cannot be removed by this script"
    fi
    rm -rf "$(dirname $RECORD)"
    say "Knarr is removed"
}

source='' checksum='' action=install yes=no
while [ $# -gt 0 ]; do
    case $1 in
        --from) source=${2:?--from needs a file or URL}; shift 2 ;;
        --sha256) checksum=${2:?--sha256 needs a checksum}; shift 2 ;;
        --uninstall) action=uninstall; shift ;;
        --yes) yes=yes; shift ;;
        -h | --help) usage; exit ;;
        server | agent) break ;;
        *) usage >&2; fail "unknown argument $1" ;;
    esac
done
[ "$(id -u)" = 0 ] || fail "run this as root"
scratch=$(mktemp -d)
placed=
trap 'rm -rf "$scratch"; [ -z "$placed" ] || rm -f $POLICY' EXIT
trap 'exit 1' INT TERM
$action "$@"
