// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

//go:build !urfave_cli_no_docs

// Manual writes the manual page and the shell completions of the tool into a directory like /usr/share. The library
// urfave/cli makes the page and the completions. The code for pages needs a Markdown library, which the shipped tool
// must not contain.
//
//	manual DIR
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// alias is the name of the link to the program.
const alias = "cni-tool"

func main() {
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manual: error:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	app := tool.New(io.Discard)
	for _, c := range app.Commands {
		c.UsageText += "\n\n" + c.Description // the library's page leaves out the description
	}
	page, err1 := app.ToMan()
	fish, err2 := app.ToFishCompletion()
	bash, err3 := script("bash")
	zsh, err4 := script("zsh")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"man/man8/" + tool.Name + ".8": page + sections,
		// the script for bash takes the program's name from the file's name
		"bash-completion/completions/" + tool.Name:         bash,
		"zsh/site-functions/_" + tool.Name:                 strings.ReplaceAll(zsh, "$PROG", tool.Name+" "+alias),
		"fish/vendor_completions.d/" + tool.Name + ".fish": fish,
		"fish/vendor_completions.d/" + alias + ".fish":     "complete -c " + alias + " -w " + tool.Name + "\n",
	} {
		if err := replace(filepath.Join(dir, name), text); err != nil {
			return err
		}
	}
	return errors.Join(link(filepath.Join(dir, "man/man8"), tool.Name+".8", alias+".8"),
		link(filepath.Join(dir, "bash-completion/completions"), tool.Name, alias))
}

// script returns the library's completion for a shell, from a file in the directory of the library's module.
func script(shell string) (string, error) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/urfave/cli/v2").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "autocomplete", shell+"_autocomplete"))
	return string(text), err
}

// replace makes the file's directory, and then writes the file, whole or not at all.
func replace(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return cli.ReplaceFile(file, []byte(text), 0o644)
}

// link makes a symbolic link in dir. It replaces an older file with the same name.
func link(dir, to, name string) error {
	err := os.Remove(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(to, filepath.Join(dir, name))
}
