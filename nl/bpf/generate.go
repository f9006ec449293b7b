// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

//go:build ignore

// generate.go compiles the programs in src, and writes programs.go. With -check, it only reports whether programs.go is
// up to date. Only "go generate" and "make lint" run it, because it needs clang.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"go/format"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Another release of clang may generate different instructions. If you change the release, measure how fast the new
// instructions are (make bench-traffic), and check that the kernels of nodes accept them (make test-kernels).
const (
	clang   = "clang-16"
	release = "16.0.6"
	output  = "programs.go"
	install = "on Debian 12: apt-get install " + clang + " libbpf-dev linux-libc-dev"
)

// Numbers of linux/bpf.h and of LLVM's ELFRelocs/BPF.def.
const (
	insnSize   = 8
	callInsn   = 0x85 // BPF_JMP | BPF_CALL
	relocValue = 1    // R_BPF_64_64: for an instruction that loads a number of 64 bits
	relocCall  = 10   // R_BPF_64_32
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("nl/bpf: ")
	check := flag.Bool("check", false, "compare "+output+" with what would be generated")
	flag.Parse()
	want := generate()
	if !*check {
		must(os.WriteFile(output, want, 0o644))
		return
	}
	got, err := os.ReadFile(output)
	must(err)
	if !bytes.Equal(got, want) {
		log.Fatalf("%s is not what %s %s makes of src: run go generate ./nl/bpf", output, clang, release)
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func generate() []byte {
	version, err := exec.Command(clang, "--version").Output()
	if err != nil {
		log.Fatalf("%v; %s", err, install)
	}
	if !regexp.MustCompile(`clang version ` + regexp.QuoteMeta(release) + `\b`).Match(version) {
		log.Fatalf("want version %s of %s, got %q; %s", release, clang, version, install)
	}
	sources, err := filepath.Glob("src/*.c")
	must(err)
	var b bytes.Buffer
	fmt.Fprintf(&b, "// SPDX-License-Identifier: Apache-2.0\n// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s "+
		"authors\n\n")
	fmt.Fprintf(&b, "// Code generated from src by generate.go with clang %s; DO NOT EDIT.\n\npackage bpf\n", release)
	fmt.Fprintf(&b, "\n// sources is the SHA-256 of the files in src, one after the other.\nconst sources = %q\n",
		sourcesHash())
	var sizes []uint32
	for _, source := range sources {
		name := strings.TrimSuffix(filepath.Base(source), ".c")
		p := readProgram(source, compile(source))
		p.print(&b, name)
		if sizes != nil && p.sizes != nil && !slices.Equal(sizes, p.sizes) {
			log.Fatalf("%s: its maps have the sizes %d, and the maps of another source have %d", source, p.sizes, sizes)
		}
		if p.sizes != nil {
			sizes = p.sizes
		}
	}
	fmt.Fprintf(&b, "\n// The sizes of a map's keys and values, and the number of sets that a pod has.\n")
	fmt.Fprintf(&b, "const MapKeySize, MapValueSize, MapSets = %d, %d, %d\n", sizes[0], sizes[1], sizes[2])
	text, err := format.Source(b.Bytes())
	must(err)
	return text
}

// sourcesHash returns the SHA-256 of all sources. A test compares it with the hash in programs.go, without clang.
func sourcesHash() string {
	h := sha256.New()
	files, err := filepath.Glob("src/*")
	must(err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		must(err)
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// compile returns the object file of a source. It uses version 3 of the instruction set (-mcpu=v3), which Linux has
// since 5.1. Debian has a file asm/types.h for each architecture. The first of these files is enough, because our
// programs use only types that are the same in all of them.
func compile(source string) []byte {
	machine, _ := filepath.Glob("/usr/include/*-linux-gnu")
	if len(machine) == 0 {
		log.Fatal("there are no headers of the kernel; " + install)
	}
	cmd := exec.Command(clang, "-target", "bpfel", "-mcpu=v3", "-O2", "-ffreestanding", "-fno-strict-aliasing", "-Wall",
		"-Wextra", "-Werror",
		"-I"+machine[0], "-c", source, "-o", "-")
	cmd.Stderr = os.Stderr
	object, err := cmd.Output()
	if err != nil {
		log.Fatalf("%s: %v", source, err)
	}
	return object
}

// A program is one BPF program after linking. The code begins with the program's own function, and the functions that
// it calls follow.
type program struct {
	code     []byte
	operands []operand
	sizes    []uint32 // MapKeySize, MapValueSize and MapSets, from struct map of src/memory.h; nil: no maps
}

// An operand is a number that the compiler does not know: Go code writes it into an instruction.
type operand struct {
	name string
	at   int
	fd   bool // the number is the file descriptor of a map
}

func readProgram(source string, object []byte) (p program) {
	f, err := elf.NewFile(bytes.NewReader(object))
	must(err)
	symbols, err := f.Symbols()
	must(err)
	start := map[string]int{}
	for _, name := range []string{"tc", ".text"} {
		if s := f.Section(name); s != nil {
			start[name] = len(p.code)
			p.code = append(p.code, sectionData(s)...)
		}
	}
	for name, at := range start {
		for rel := sectionData(f.Section(".rel" + name)); len(rel) > 0; rel = rel[16:] {
			info := binary.LittleEndian.Uint64(rel[8:])
			p.relocate(f, at+int(binary.LittleEndian.Uint64(rel)), uint32(info), symbols[info>>32-1], start)
		}
	}
	slices.SortFunc(p.operands, func(a, b operand) int { return a.at - b.at })
	if b := sectionData(f.Section("maps")); len(b) > 0 {
		const one = 12
		for size := range slices.Chunk(b[:one], 4) {
			p.sizes = append(p.sizes, binary.LittleEndian.Uint32(size))
		}
		if !bytes.Equal(bytes.Repeat(b[:one], len(b)/one), b) {
			log.Fatalf("%s: the maps are not alike", source)
		}
	}
	return p
}

func sectionData(s *elf.Section) []byte {
	if s == nil {
		return nil
	}
	b, err := s.Data()
	must(err)
	return b
}

// relocate handles one relocation of the object file: it records an operand, or writes a function's position into a
// call.
func (p *program) relocate(f *elf.File, at int, kind uint32, s elf.Symbol, start map[string]int) {
	switch {
	case kind == relocValue && s.Section == elf.SHN_UNDEF:
		p.operands = append(p.operands, operand{s.Name, at / insnSize, false})
	case kind == relocValue && f.Sections[s.Section].Name == "maps":
		p.operands = append(p.operands, operand{s.Name, at / insnSize, true})
	case kind == relocCall && p.code[at] == callInsn:
		// The compiler has written a number into the call. This number plus one is the distance from the symbol to the
		// function, in instructions.
		imm := p.code[at+4:]
		function := start[f.Sections[s.Section].Name]/insnSize + int(s.Value)/insnSize + int(
			int32(binary.LittleEndian.Uint32(imm))) + 1
		binary.LittleEndian.PutUint32(imm, uint32(function-at/insnSize-1))
	default:
		log.Fatalf("instruction %d: relocation %d of %q", at/insnSize, kind, s.Name)
	}
}

func (p *program) print(b *bytes.Buffer, name string) {
	fmt.Fprintf(b, "\nvar %sProgram = program{\ncode: []uint64{", name)
	for i := 0; i < len(p.code); i += insnSize {
		if i/insnSize%6 == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "%#016x, ", binary.LittleEndian.Uint64(p.code[i:]))
	}
	b.WriteString("\n},\noperands: []operand{\n")
	for _, g := range p.operands {
		fmt.Fprintf(b, "{%q, %d, %t},\n", g.name, g.at, g.fd)
	}
	b.WriteString("},\n}\n")
}
