#!/bin/bash
# Boots systemd in a Debian root, which it leaves as it is: boot_machine.sh LOWER WORK CGROUP DISK.
# To be run as root, in network and mount namespaces of its own.
set -eu
lower=$1 work=$2 cgroup=$3 disk=$4 stage=${5:-outside}
root=$work/root

if [ "$stage" = outside ]; then
  mount --make-rprivate /
  mount -t overlay overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/overlay" "$root"
  # A group of its own, which is the root of what systemd sees.
  mount -t cgroup2 none "$work/cgroup"
  mkdir -p "$work/cgroup/$cgroup"
  echo $$ > "$work/cgroup/$cgroup/cgroup.procs"
  exec unshare --cgroup --pid --ipc --uts --fork --kill-child "$0" "$lower" "$work" "$cgroup" "$disk" inside
fi

mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
mount -t cgroup2 none "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  cp -a "/dev/$device" "$root/dev/$device"
done
cp -a "$disk" "$root/dev/disk0"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
hostname machine
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  chroot "$root" /lib/systemd/systemd --log-target=journal --show-status=no
