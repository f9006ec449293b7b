// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command cri calls a container runtime through the Container Runtime Interface, as kubelet does. If the runtime does
// not listen yet, the command waits.
//
// usage: cri SOCKET METHOD REQUEST
//
// METHOD is a method of RuntimeService or ImageService. REQUEST is the request as JSON. The command prints the answer
// as JSON.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	_ "k8s.io/cri-api/pkg/apis/runtime/v1" // registers the services
)

// callTimeout is kubelet's default time limit for a call (runtimeRequestTimeout).
const callTimeout = 2 * time.Minute

// connectParams make the client repeat a failed attempt to connect after 100 milliseconds.
var connectParams = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, MaxDelay: 100 * time.Millisecond},
	MinConnectTimeout: callTimeout, // long, because a runtime that listens may be too busy to answer at once
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: cri SOCKET METHOD REQUEST")
		os.Exit(2)
	}
	answer, err := callMethod(os.Args[1], protoreflect.Name(os.Args[2]), []byte(os.Args[3]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Print fields with zero values, too, because READY is the zero value of a sandbox's state.
	fmt.Println(protojson.MarshalOptions{EmitDefaultValues: true}.Format(answer))
}

// callMethod calls a method of the runtime by its name in the protocol, and returns the answer.
func callMethod(socket string, name protoreflect.Name, request []byte) (proto.Message, error) {
	m, err := method(name)
	if err != nil {
		return nil, err
	}
	in, out, err := messages(m)
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(request, in); err != nil {
		return nil, fmt.Errorf("%s: %w", request, err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(connectParams))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return out, conn.Invoke(ctx, fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), in, out,
		grpc.WaitForReady(true))
}

// services are the full names of the CRI's two gRPC services.
var services = []protoreflect.FullName{"runtime.v1.RuntimeService", "runtime.v1.ImageService"}

func method(name protoreflect.Name) (protoreflect.MethodDescriptor, error) {
	for _, service := range services {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(service.Append(name))
		if m, ok := d.(protoreflect.MethodDescriptor); err == nil && ok {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no service of the interface has a method %s", name)
}

// messages returns an empty request and an empty answer of a method.
func messages(m protoreflect.MethodDescriptor) (in, out proto.Message, err error) {
	request, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		return nil, nil, err
	}
	answer, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return nil, nil, err
	}
	return request.New().Interface(), answer.New().Interface(), nil
}
