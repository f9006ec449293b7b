// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Expression evaluates CEL expressions whose result is the maximum number of pods of a node. Karpenter and nodeadm
// evaluate such expressions in the same way, with the same CEL library. The program reads a JSON list of questions, and
// prints a JSON list of answers.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// A Question is an expression and an instance type. The answer is the value of the expression for this instance type.
type Question struct {
	Program     string // karpenter or nodeadm
	Expression  string
	Type        string
	DefaultENIs int64
	IPsPerENI   int64
}

func main() {
	var questions []Question
	if err := json.NewDecoder(os.Stdin).Decode(&questions); err != nil {
		fmt.Fprintln(os.Stderr, "expression: error:", err)
		os.Exit(1)
	}
	answers := []string{}
	for _, q := range questions {
		n, err := q.evaluate()
		if err != nil {
			answers = append(answers, "error: "+err.Error())
			continue
		}
		answers = append(answers, fmt.Sprint(n))
	}
	_ = json.NewEncoder(os.Stdout).Encode(answers)
}

// evaluate returns the number of pods that q.Program would use.
func (q Question) evaluate() (int64, error) {
	env, least := nodeadm, int64(1)
	if q.Program == "karpenter" {
		env, least = karpenter, 0
	}
	e, err := cel.NewEnv(env()...)
	if err != nil {
		return 0, err
	}
	ast, issues := e.Compile(q.Expression)
	if issues.Err() != nil {
		return 0, issues.Err()
	}
	if ast.OutputType() != cel.IntType {
		return 0, fmt.Errorf("the result is of type %v", ast.OutputType())
	}
	program, err := e.Program(ast)
	if err != nil {
		return 0, err
	}
	const others = 4 // the value of variables that our expressions do not use
	out, _, err := program.Eval(map[string]any{"default_enis": q.DefaultENIs, "ips_per_eni": q.IPsPerENI,
		"max_pods": q.DefaultENIs*(q.IPsPerENI-1) + 2, "vcpus": others, "memory_mib": others, "instance_type": q.Type})
	if err != nil {
		return 0, err
	}
	n := out.Value().(int64)
	if n < least || n > math.MaxInt32 {
		return 0, fmt.Errorf("%d: want %d to %d", n, least, math.MaxInt32)
	}
	return n, nil
}

// nodeadm returns the declarations in nodeadm/internal/kubelet/eni_max_pods.go of awslabs/amazon-eks-ami.
func nodeadm() []cel.EnvOption {
	return []cel.EnvOption{cel.Variable("default_enis", cel.IntType), cel.Variable("ips_per_eni", cel.IntType),
		cel.Variable("max_pods", cel.IntType)}
}

// karpenter returns the declarations in pkg/cel/environment.go of aws/karpenter-provider-aws, without the functions for
// floating-point numbers.
func karpenter() []cel.EnvOption {
	return append(nodeadm(), cel.Variable("vcpus", cel.IntType), cel.Variable("memory_mib", cel.IntType),
		cel.Variable("instance_type", cel.StringType),
		choose("min", func(a, b types.Int) bool { return a < b }),
		choose("max", func(a, b types.Int) bool { return a > b }))
}

// choose declares a CEL function with two numbers as arguments. The CEL function passes both numbers to the Go function
// "better". If "better" returns true, the CEL function returns the first number, and otherwise the second number.
func choose(name string, better func(a, b types.Int) bool) cel.EnvOption {
	return cel.Function(name, cel.Overload(name+"_int_int", []*cel.Type{cel.IntType, cel.IntType}, cel.IntType,
		cel.BinaryBinding(func(a, b ref.Val) ref.Val {
			if better(a.(types.Int), b.(types.Int)) {
				return a
			}
			return b
		})))
}
