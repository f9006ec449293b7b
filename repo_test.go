// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s"

// arrows lists, for each package, which of our packages it may import. Tests may import more, because the simulators
// and nltest are for tests.
var arrows = map[string]string{
	"":                         "",
	"aws":                      "aws/api internal/release",
	"aws/api":                  "",
	"nl":                       "nl/bpf nl/ifname",
	"nl/ifname":                "",
	"nl/ask":                   "nl",
	"nl/bpf":                   "",
	"internal/atomicfile":      "",
	"internal/codec":           "",
	"internal/release":         "",
	"internal/stack":           "",
	"internal/trace":           "",
	"internal/excerpt":         "",
	"internal/kernels":         "internal/table internal/testevents",
	"internal/judges":          "internal/table internal/testevents",
	"internal/table":           "",
	"internal/testevents":      "",
	"internal/codec/codectest": "internal/codec",
	"internal/codec/gen":       "",
	"registry":                 "registry/indexed internal/atomicfile internal/codec internal/trace",
	"registry/indexed":         "internal/codec",
	// The plugins do not import nl here, because they need only nl/ifname.
	"plugin":                "nl/ifname internal/codec internal/excerpt internal/release internal/stack internal/trace",
	"plugin/values":         "nl/ifname",
	"plugin/nic":            "plugin/values nl/ifname internal/codec internal/excerpt",
	"plugin/ipvlan":         "plugin plugin/nic plugin/values nl internal/codec",
	"plugin/egress":         "plugin plugin/values nl nl/ifname internal/codec internal/excerpt",
	"unnumbered-ptp":        "unnumbered-ptp/legacy plugin plugin/values nl internal/codec",
	"unnumbered-ptp/legacy": "nl",
	// ipam/lease is the warm path, so it must not import aws.
	"ipam/lease": "plugin plugin/nic plugin/values nl registry internal/codec internal/excerpt",
	"ipam/book":  "ipam/lease aws registry",
	"ipam/call":  "ipam/book ipam/lease plugin aws registry",
	"ipam/known": "ipam/call ipam/book ipam/lease aws nl registry",
	"ipam/less":  "ipam/known ipam/call ipam/book ipam/lease aws registry",
	"ipam/more":  "ipam/less ipam/known ipam/call ipam/book ipam/lease plugin aws nl registry",
	"ipam/asked": "ipam/more ipam/known ipam/call ipam/book ipam/lease plugin aws nl registry",
	"ipam":       "ipam/asked ipam/more ipam/less ipam/known ipam/call ipam/book ipam/lease plugin aws nl registry",
	// plugin/chain must not import ipam, because ipam imports the SDK.
	"plugin/chain": "plugin plugin/ipvlan plugin/egress plugin/values unnumbered-ptp ipam/lease nl internal/codec",
	"tool": "internal/release internal/excerpt tool/cli tool/conf tool/view tool/repair tool/doctor tool/history " +
		"tool/bundle tool/bundle/page tool/connectivity tool/iam tool/install tool/kube ipam ipam/more ipam/less " +
		"ipam/book ipam/lease " +
		"plugin/egress unnumbered-ptp aws aws/api nl registry",
	"tool/install":      "tool/cli tool/conf tool/doctor nl registry",
	"tool/connectivity": "tool/cli tool/conf aws nl nl/ask",
	"tool/cli":          "internal/atomicfile internal/excerpt ipam ipam/lease aws registry",
	// tool/conf imports the plugins, to validate their configurations.
	"tool/conf": "tool/cli ipam/book ipam/lease registry plugin plugin/values plugin/chain plugin/ipvlan " +
		"plugin/egress unnumbered-ptp",
	"tool/view": "internal/release tool/cli tool/conf ipam ipam/more ipam/known ipam/book ipam/lease plugin/egress " +
		"aws nl registry",
	"tool/kube": "",
	// tool/bundle lists the data that may leave a node.
	"tool/bundle":      "internal/release tool/cli tool/conf tool/doctor tool/view ipam/book aws nl registry",
	"tool/bundle/page": "tool/bundle tool/cli tool/conf tool/doctor tool/view nl registry",
	"tool/iam":         "ipam/book ipam/lease",
	"tool/history":     "registry",
	// tool/repair repeats the ADD of the plugins.
	"tool/repair": "tool/conf tool/view ipam/lease plugin plugin/ipvlan plugin/egress unnumbered-ptp nl registry",
	"tool/doctor": "internal/release tool/cli tool/conf tool/view tool/repair tool/iam ipam ipam/more ipam/call " +
		"ipam/book ipam/lease plugin plugin/ipvlan plugin/egress unnumbered-ptp aws aws/api nl nl/ask registry",
	"sim/ec2sim":       "aws/api",
	"sim/vpcsim":       "sim/ec2sim nl",
	"sim/simtest":      "sim/vpcsim sim/ec2sim registry nl nl/nltest",
	"nl/nltest":        "nl",
	"nl/nltest/trace":  "",
	"e2e":              "",
	"packaging":        "",
	"packaging/sbom":   "",
	"packaging/manual": "tool tool/cli",

	"ipam/cni-ipvlan-vpc-k8s-grow":                     "plugin ipam ipam/lease",
	"ipam/cni-ipvlan-vpc-k8s-ipam":                     "plugin ipam/lease",
	"plugin/ipvlan/cni-ipvlan-vpc-k8s-ipvlan":          "plugin plugin/ipvlan ipam/lease",
	"unnumbered-ptp/cni-ipvlan-vpc-k8s-unnumbered-ptp": "plugin unnumbered-ptp",
	"plugin/egress/cni-ipvlan-vpc-k8s-egress":          "plugin plugin/egress",
	"plugin/chain/cni-ipvlan-vpc-k8s":                  "plugin plugin/chain",
	"tool/cni-ipvlan-vpc-k8s-tool":                     "tool",
	"sim/demo":                                         "sim/machine sim/vpcsim sim/paths sim/ec2sim nl",
	"sim/paths":                                        "sim/vpcsim sim/kubeproxy sim/ec2sim nl",
	"sim/bench":                                        "sim/vpcsim sim/paths sim/ec2sim nl registry internal/table",
	"sim/bench/plot":                                   "internal/table",
	"sim/bench/noop":                                   "",
	"sim/bench/peak":                                   "",
	"sim/machine":                                      "sim/vpcsim",
	"sim/cluster":                                      "sim/machine sim/vpcsim sim/ec2sim",
	"sim/cluster/play":                                 "sim/cluster sim/machine",
	"sim/shell": "sim/machine sim/vpcsim sim/ec2sim sim/paths " +
		"sim/kubeproxy nl aws/api",
	"sim/fleet":     "",
	"sim/kubeproxy": "nl",
	"sim/cri":       "",
	"sim/judge":     "",
	"acceptance": "aws aws/api acceptance/compare acceptance/ends sim/paths sim/ec2sim " +
		"ipam/lease tool/iam",
	"acceptance/compare":                  "aws",
	"acceptance/ends":                     "sim/vpcsim nl",
	"acceptance/ends/cni-acceptance-ends": "acceptance/ends",
}

// owners lists, for each dependency, which packages may import it. The key is the beginning of the dependency's path.
var owners = map[string][]string{
	"github.com/vishvananda/":                {"nl", "nl/ask", "nl/nltest", "sim/vpcsim", "sim/kubeproxy", "sim/bench"},
	"github.com/containernetworking/plugins": {"nl"},
	"github.com/gofrs/flock":                 {"registry"},
	"github.com/google/nftables":             nil, // its initialisation is 2 % of each ADD; see testOwners
	"github.com/mdlayher/":                   nil, // google/nftables imports it
	"github.com/aws/":                        {"aws", "acceptance"},
	"golang.org/x/crypto/ssh":                {"acceptance"},
	"github.com/urfave/cli":                  {"tool/cli"},
	"sigs.k8s.io/yaml":                       {"tool/kube"},
	"github.com/containernetworking/cni/libcni": {"tool/connectivity", "sim/paths", "sim/bench",
		"acceptance/ends"},
}

// testOwners lists the packages whose tests compare our code with a dependency that no other package may import.
var testOwners = map[string]string{
	"github.com/google/nftables": "nl",
	"github.com/mdlayher/":       "nl",
}

// forbidden are packages whose cost for a plugin is too high.
var forbidden = map[string]string{
	"github.com/containernetworking/cni/pkg/invoke":   "links OpenTelemetry and net/http into a plugin",
	"github.com/containernetworking/plugins/pkg/ip":   "links go-iptables and knftables",
	"github.com/containernetworking/plugins/pkg/ipam": "links OpenTelemetry and net/http",
	"github.com/aws/aws-sdk-go-v2/config":             "costs every ADD a millisecond",
	"github.com/vishvananda/netlink":                  "costs every ADD a thirtieth before main",
}

// exempt are the packages that may import forbidden packages, because they are not part of a plugin.
var exempt = map[string][]string{
	"acceptance":    {"github.com/aws/aws-sdk-go-v2/config"}, // for AWS_PROFILE
	"nl/ask":        {"github.com/vishvananda/netlink"},
	"sim/vpcsim":    {"github.com/vishvananda/netlink"},
	"sim/kubeproxy": {"github.com/vishvananda/netlink"},
	"sim/bench":     {"github.com/vishvananda/netlink", "github.com/containernetworking/cni/pkg/invoke"},
	"sim/paths":     {"github.com/containernetworking/cni/pkg/invoke"},
}

// sizes are the maximum sizes of the stripped programs in MB (10^6 bytes).
var sizes = map[string]float64{
	"ipam/cni-ipvlan-vpc-k8s-grow":                     11.56,
	"ipam/cni-ipvlan-vpc-k8s-ipam":                     4.32,
	"plugin/ipvlan/cni-ipvlan-vpc-k8s-ipvlan":          3.96,
	"unnumbered-ptp/cni-ipvlan-vpc-k8s-unnumbered-ptp": 4.14,
	"plugin/egress/cni-ipvlan-vpc-k8s-egress":          3.38,
	"plugin/chain/cni-ipvlan-vpc-k8s":                  5.88,
	// The support bundle needs 0.9 MB of this size: a third each for html/template, for tar and gzip, and for its own
	// code. connectivity-test needs 0.7 MB: about half for libcni and its imports, and half for its own code. netlink
	// needs 0.3 MB.
	"tool/cni-ipvlan-vpc-k8s-tool": 21.05,
}

type pkg struct {
	ImportPath, Dir, Name              string
	Imports, TestImports, XTestImports []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Imports,TestImports,XTestImports,"+
		"GoFiles,TestGoFiles,XTestGoFiles", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var ps []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		ps = append(ps, p)
	}
	return ps
}

// TestRepoArrows checks that each package imports exactly the packages in the table.
func TestRepoArrows(t *testing.T) {
	for _, p := range packages(t) {
		may, ok := arrows[p.ImportPath]
		if !ok {
			t.Errorf("package %q has no arrows: doc.go says what it is for, and this test what it may import",
				p.ImportPath)
		}
		for _, ours := range strings.Fields(may) {
			if !slices.Contains(p.Imports, module+"/"+ours) {
				t.Errorf("%s does not import %s any more: the arrow goes", p.ImportPath, ours)
			}
		}
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok && !slices.Contains(strings.Fields(may), ours) {
				t.Errorf("%s imports %s: there is no such arrow", p.ImportPath, ours)
			}
			for prefix, only := range owners {
				if strings.HasPrefix(imp, prefix) && !slices.Contains(only, p.ImportPath) {
					t.Errorf("%s imports %s: only %v may", p.ImportPath, imp, only)
				}
			}
			if why, ok := forbidden[imp]; ok && !slices.Contains(exempt[p.ImportPath], imp) {
				t.Errorf("%s imports %s, which %s", p.ImportPath, imp, why)
			}
		}
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			for prefix, only := range testOwners {
				if strings.HasPrefix(imp, prefix) && p.ImportPath != only {
					t.Errorf("a test of %s imports %s: only those of %s may", p.ImportPath, imp, only)
				}
			}
		}
	}
}

// TestRepoChosen checks that the programs for nodes import the packages that the owner of the project has chosen.
func TestRepoChosen(t *testing.T) {
	imported := map[string]bool{}
	for _, p := range packages(t) {
		if strings.HasPrefix(p.ImportPath, "sim") || strings.HasPrefix(p.ImportPath, "nl/nltest") ||
			strings.HasPrefix(p.ImportPath, "acceptance") {
			continue
		}
		for _, imp := range p.Imports {
			imported[imp] = true
		}
	}
	for _, chosen := range []string{"containernetworking/cni/pkg/types", "containernetworking/plugins/pkg/ns",
		"vishvananda/netlink", "vishvananda/netns", "aws/aws-sdk-go-v2/aws", "urfave/cli/v2", "gofrs/flock"} {
		if !imported["github.com/"+chosen] {
			t.Errorf("no package of the programs imports github.com/%s", chosen)
		}
	}
}

// TestRepoPackageDocs checks that each package has one package comment, in the file with the package's name.
func TestRepoPackageDocs(t *testing.T) {
	for _, p := range packages(t) {
		var documented []string
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil,
				parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				documented = append(documented, file)
			}
		}
		want := p.Name + ".go"
		if p.ImportPath == "" {
			want = "doc.go"
		}
		if len(documented) != 1 || documented[0] != want {
			t.Errorf("%s: package comment in %v, want it in %s", p.ImportPath, documented, want)
		}
	}
}

// TestRepoExportedDocs checks that each exported name has a comment.
func TestRepoExportedDocs(t *testing.T) {
	for _, p := range packages(t) {
		for _, file := range p.GoFiles {
			name := path.Join(p.ImportPath, file)
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.IsExported() && fn.Doc == nil && !wellKnown(fn) {
					t.Errorf("%s: %s has no comment", name, fn.Name.Name)
				}
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE && g.Doc == nil {
					for _, s := range g.Specs {
						if ts := s.(*ast.TypeSpec); ts.Name.IsExported() && ts.Doc == nil {
							t.Errorf("%s: type %s has no comment", name, ts.Name.Name)
						}
					}
				}
			}
		}
	}
}

// wellKnown reports whether a method needs no comment. The methods of error, fmt.Stringer and errors are well known.
// The type nl.Object documents the methods of objects. A method of an unexported type is not exported either.
func wellKnown(fn *ast.FuncDecl) bool {
	if fn.Recv == nil {
		return false
	}
	own := strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*")
	return !ast.IsExported(own) ||
		slices.Contains([]string{"Error", "Unwrap", "Is", "String", "Add", "Del", "Check", "Close", "ServeHTTP"},
			fn.Name.Name)
}

func TestRepoSPDX(t *testing.T) {
	const header = "// SPDX-License-Identifier: Apache-2.0\n// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s " +
		"authors\n\n"
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (p == ".git" || p == ".cache" || p == "bin") {
			return fs.SkipDir
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		b, err := os.ReadFile(p)
		if err == nil && !bytes.HasPrefix(b, []byte(header)) {
			t.Errorf("%s does not begin with\n%s", p, header)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRepoPinned refuses PROGRAM@VERSION in the Makefile and in scripts, because this form pins no dependencies of the
// program. Programs of other projects belong in a go.mod, whose go.sum pins everything.
func TestRepoPinned(t *testing.T) {
	unpinned := regexp.MustCompile(`\bgo (run|install|get|tool)\b.*@(v[0-9]|latest)`)
	for _, file := range []string{"Makefile", "packaging/package", "packaging/release", ".ci/run", ".ci/bare",
		"nl/nltest/vm/setup"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range unpinned.FindAll(b, -1) {
			t.Errorf("%s: %s: make it a tool of internal/tools/go.mod", file, line)
		}
	}
}

// TestRepoREADME limits the length of the README, so that people read all of it. Longer texts belong in docs.
func TestRepoREADME(t *testing.T) {
	const most = 200
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b, []byte("\n")); n > most {
		t.Errorf("README.md has %d lines, want at most %d", n, most)
	}
}

// TestRepoInit checks that nl has no code that runs before main, because each ADD would pay for it. At package level,
// there must be no map, and no error made by fmt.Errorf.
func TestRepoInit(t *testing.T) {
	object, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", "./nl").Output()
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := exec.Command("go", "tool", "nm", "-size", strings.TrimSpace(string(object))).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(symbols, []byte("/nl.Open\n")) {
		t.Fatalf("no symbols of nl:\n%s", symbols)
	}
	const nothing = 16 // the compiler may leave an empty function
	for _, m := range regexp.MustCompile(`(\d+) T \S*/nl\.((?:map\.)?init(?:\.\d+)?)\n`).FindAllSubmatch(symbols, -1) {
		if size, _ := strconv.Atoi(string(m[1])); size > nothing {
			t.Errorf("%s of nl has %d bytes", m[2], size)
		}
	}
}

// TestRepoSizes checks the sizes of the programs in bin. make builds the programs before the test.
func TestRepoSizes(t *testing.T) {
	for prog, most := range sizes {
		fi, err := os.Stat(filepath.Join("bin", path.Base(prog)))
		if err != nil {
			t.Errorf("%v: run make build", err)
			continue
		}
		if got := float64(fi.Size()) / 1e6; got > most {
			t.Errorf("%s has %.2f MB, want at most %v", path.Base(prog), got, most)
		}
	}
}

const configurationPage = "docs/configuration.md"

// TestRepoReferenceEnvironment checks that the reference lists each environment variable that the programs read.
func TestRepoReferenceEnvironment(t *testing.T) {
	text, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages(t) {
		if strings.HasPrefix(p.ImportPath, "sim") || strings.HasPrefix(p.ImportPath, "nl/nltest") {
			continue // these packages are for tests
		}
		for _, file := range p.GoFiles {
			source, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range getenv.FindAllSubmatch(source, -1) {
				if name := string(m[1]) + string(m[2]); !bytes.Contains(text, []byte("`"+name+"`")) {
					t.Errorf("%s: the variable %s has no entry", configurationPage, name)
				}
			}
		}
	}
}

// getenv matches the name of an environment variable that a program reads.
var getenv = regexp.MustCompile(`os\.Getenv\("([A-Z0-9_]+)"\)|"(AWS_[A-Z0-9_]+)"`)

// TestRepoNames checks that the comment of a function or a type begins with its name. It also checks that all methods
// of a type have the same name for their receiver.
func TestRepoNames(t *testing.T) {
	receivers := map[string]string{}
	for _, p := range packages(t) {
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				name, doc := declared(d)
				if doc != "" && name != "init" && !regexp.MustCompile(`^((A|An|The|Each|One) )?`+name+
					`\b`).MatchString(doc) {
					t.Errorf("%s: the comment of %s does not begin with it: %.60s",
						path.Join(p.ImportPath, file), name, doc)
				}
				if of, receiver := received(d); receiver != "" {
					of = p.ImportPath + "." + of
					if was := cmp.Or(receivers[of], receiver); was != receiver {
						t.Errorf("%s has the receivers %s and %s", of, was, receiver)
					}
					receivers[of] = receiver
				}
			}
		}
	}
	if len(receivers) < 100 {
		t.Errorf("only %d types have methods", len(receivers))
	}
}

// declared returns the name and the comment of a function, or of a type that is declared alone.
func declared(d ast.Decl) (name, doc string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Name.Name, d.Doc.Text()
	case *ast.GenDecl:
		if s, is := d.Specs[0].(*ast.TypeSpec); is && len(d.Specs) == 1 {
			return s.Name.Name, d.Doc.Text()
		}
	}
	return "", ""
}

// received returns the type to which a method belongs, and the name of its receiver.
func received(d ast.Decl) (of, name string) {
	f, is := d.(*ast.FuncDecl)
	if !is || f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
		return "", ""
	}
	of = strings.TrimLeft(types.ExprString(f.Recv.List[0].Type), "*")
	of, _, _ = strings.Cut(of, "[")
	return of, f.Recv.List[0].Names[0].Name
}

// phaseStep matches an assignment to one of the fields that decide the phase of an ENI.
var phaseStep = regexp.MustCompile(`\.(Serving|Passed|Foreign|TagsUnknown|Draining|Missed)\b[^=:\n]* = `)

// TestRepoPhases checks that only package registry assigns to the fields that decide the phase of an ENI.
func TestRepoPhases(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath == "registry" || strings.HasPrefix(p.ImportPath, "sim") {
			continue
		}
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range phaseStep.FindAllString(string(text), -1) {
				t.Errorf("%s has %q: registry/phase.go has the steps", path.Join(p.ImportPath, file), line)
			}
		}
	}
}

// TestRepoIMDSv2 checks that no page, hint or platform file makes an instance answer IMDSv1 requests. The plugins use
// only IMDSv2, and docs/security.md requires it.
func TestRepoIMDSv2(t *testing.T) {
	optional := regexp.MustCompile(`(?i)http-?_?tokens["': =]+optional`)
	if !optional.MatchString("--http-tokens "+"optional") || !optional.MatchString(`"HttpTokens": "`+`optional"`) {
		t.Error("the test finds nothing")
	}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{".git", ".cache", "bin", "dist"}, file) {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(file)
		if found := optional.Find(text); found != nil {
			t.Errorf("%s has %q", file, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRepoExecuted checks that docs/security.md names each program of other projects that our programs execute.
func TestRepoExecuted(t *testing.T) {
	page, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	executed := regexp.MustCompile(`\b(?:exec\.Command\w*|output)\([^"\n]*"([a-z]+)"`)
	found := 0
	for _, p := range packages(t) {
		top, _, _ := strings.Cut(p.ImportPath, "/")
		if !slices.Contains([]string{"ipam", "plugin", "tool", "unnumbered-ptp"}, top) {
			continue
		}
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range executed.FindAllSubmatch(text, -1) {
				found++
				if !bytes.Contains(page, fmt.Appendf(nil, "`%s`", m[1])) &&
					!bytes.Contains(page, fmt.Appendf(nil, "`%s ", m[1])) {
					t.Errorf("%s executes %s: docs/security.md does not say so", path.Join(p.ImportPath, file), m[1])
				}
			}
		}
	}
	if found < 4 {
		t.Errorf("only %d calls are found", found)
	}
}

// TestRepoComparison checks that README.md and docs/comparison.md do not contradict each other about a property.
func TestRepoComparison(t *testing.T) {
	rows := map[string]map[string]string{}
	for _, file := range []string{"README.md", "docs/comparison.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, table, _ := strings.Cut(string(text), "| | this | the original |")
		table, _, _ = strings.Cut(table, "\n\n")
		rows[file] = map[string]string{}
		for row := range strings.Lines(table) {
			if cells := strings.SplitN(row, "|", 3); len(cells) == 3 {
				rows[file][strings.TrimSpace(cells[1])] = cells[2]
			}
		}
	}
	for _, property := range []string{"runs on a node", "Kubernetes NetworkPolicy"} {
		short, long := rows["README.md"][property], rows["docs/comparison.md"][property]
		if short == "" || short != long {
			t.Errorf("%s: README.md has %q, and docs/comparison.md has %q", property, short, long)
		}
	}
}
