# SPDX-License-Identifier: GPL-2.0-only
"""That QEMU counts instructions as bench/workloads/insn.c believes, and that a copy has a second disk."""

import os
import subprocess

import pytest

import lab

TOGETHER = bool(os.environ.get("ITREE_FULL")) and lab.KERNEL.exists() and (lab.E2FS / "mke2fs").exists()
in_guest = pytest.mark.skipif(
    not TOGETHER, reason="takes minutes: ITREE_FULL=1 runs it, after `make kernel` and `make e2fsprogs`"
)
pytestmark = pytest.mark.timeout(1800)

# A boot sector: runs loops of 200,000 and 600,000 instructions, tells how far
# the time stamp counter went on meanwhile, and ends the machine.
BOOT = r"""
	.code16
	.globl _start
_start:	xorw %ax, %ax
	movw %ax, %ds
	movw %ax, %ss
	movw $0x7c00, %sp
	cli
	movl $100000, %ebx
	call run
	movl $300000, %ebx
	call run
	movw $0xf4, %dx
	outb %al, %dx
1:	hlt
	jmp 1b

run:	movl %ebx, %ecx
	rdtsc
	movl %eax, %esi
1:	decl %ecx
	jnz 1b
	rdtsc
	subl %esi, %eax
	movl %eax, %ebp
	movw $8, %cx
	movw $0x3f8, %dx
2:	roll $4, %ebp
	movw %bp, %ax
	andb $15, %al
	addb $'0', %al
	cmpb $'9', %al
	jbe 3f
	addb $39, %al
3:	outb %al, %dx
	loop 2b
	movb $10, %al
	outb %al, %dx
	ret
	.org 510
	.word 0xaa55
"""


def test_under_icount_the_clock_is_the_number_of_instructions(tmp_path):
    (tmp_path / "boot.s").write_text(BOOT)
    disk = tmp_path / "boot.bin"
    link = ["ld", "-m", "elf_i386", "-Ttext=0x7c00", "--oformat=binary", "-o", disk, tmp_path / "boot.o"]
    for command in (["as", "--32", "-o", tmp_path / "boot.o", tmp_path / "boot.s"], link):
        subprocess.run(command, check=True, timeout=60)
    machine = ["qemu-system-x86_64", "-accel", "tcg,thread=single", "-icount", "shift=0", "-nodefaults"]
    machine += ["-display", "none", "-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4"]
    machine += ["-drive", f"format=raw,file={disk}"]
    done = subprocess.run(machine, capture_output=True, text=True, timeout=120, check=False)
    short, long = (int(line, 16) for line in done.stdout.split())
    assert short == pytest.approx(200_000, abs=10)
    assert long - short == 400_000


# each run twice, so that the programs are in memory; sleep(1) must not count, a longer loop must
SCRIPT = r"""
set -e
count() { "$0/insn" /run/count "$@"; "$0/insn" /run/count "$@"; cat /run/count; }
count sleep 1
count bash -c 'for ((i = 0; i < 20000; i++)); do :; done'
count bash -c 'for ((i = 0; i < 40000; i++)); do :; done'
count bash -c 'for ((i = 0; i < 60000; i++)); do :; done'
"""


@in_guest
def test_instructions_are_counted_and_waiting_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "cache"))
    image = tmp_path / "disk.img"
    lab.make_fs("ext4", image, 1 << 30)
    tools = lab.compile_tools()
    command = ["bash", "-c", SCRIPT, str(tools)]
    step = lab.Step("count", command, lab.mount_options("ext4"), trace=False, timeout=100_000)
    report = lab.run_guest([(image, "ext4")], [step], tmp_path / "share", "512M", 1200, cpus=1, icount=True)
    sleep, *loops = (int(n) for n in report.output("count").split())
    # one instruction a nanosecond: a second of time would be 10^9
    assert 10_000 < sleep < 300_000_000
    first, second = loops[1] - loops[0], loops[2] - loops[1]
    assert first > 1_000_000
    assert second == pytest.approx(first, rel=0.1)


@in_guest
def test_a_copy_goes_to_the_second_disk_and_the_first_is_traced(tmp_path, monkeypatch):
    monkeypatch.setenv("ITREE_CACHE", str(tmp_path / "cache"))
    images = [tmp_path / "one.img", tmp_path / "two.img"]
    for image in images:
        lab.make_fs("ext4", image, 1 << 30)
    options = lab.mount_options("ext4")
    fill = ["bash", "-c", 'head -c 1048576 /dev/urandom >"$0/file" && sync', "{mnt}"]
    copy = ["bash", "-c", 'cp "$0/file" "$1" && sync -f "$1"', "{mnt}", "{second}"]
    steps = [lab.Step("fill", fill, options, trace=False), lab.Step("copy", copy, options, second=1)]
    report = lab.run_guest([(image, "ext4") for image in images], steps, tmp_path / "share", "512M", 600)
    read = sum(r.sectors for r in report.requests("copy") if r.is_read)
    assert read >= 2048
    assert not [r for r in report.requests("copy") if r.is_write and r.sectors > 512]
    assert report.steps["copy"]["second_sectors"] >= 2048
